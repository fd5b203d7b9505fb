"""Forms that read queries and keys are their recurrences: outputs, gradients and decoding."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlx_attn.arrays import named_arrays
from mlx_attn.attention.analysis import attention_cost
from mlx_attn.attention.attention import Attention
from mlx_attn.attention.cache import make_cache
from mlx_attn.attention.config import AttentionConfig, choices_of
from mlx_attn.attention.conversions import CONVERSIONS, find_conversion
from mlx_attn.attention.recurrent import delta_weights, unit_lower_inverse
from mlx_attn.attention.references import REFERENCES
from mlx_attn.errors import ConfigError

C, T, H = 16, 13, 2
RULES = tuple(name for name, row in choices_of("mixing").items() if row.recurs)
FORMS = (*RULES, "linear", "path", "selective")
SETTINGS: list[dict[str, Any]] = [{"position": "rope"}, {"n_kv_heads": 1}, {"score": "merged"}]
DECODED = [
    *((mixing, settings) for mixing in FORMS[:-1] for settings in SETTINGS),
    *(("selective", settings) for settings in (*SETTINGS[1:], {"position": "alibi", "window": 4})),
]
SIZES: dict[str, Any] = {"d_in": C, "d_out": C, "context_length": T, "n_heads": H}
Arrays = dict[str, np.ndarray]


def layer(mixing: str, **settings: Any) -> Attention:
    module = Attention(AttentionConfig(**SIZES, **{"position": "none", **settings}, mixing=mixing))
    drawn = np.random.default_rng(5)
    module.load_weights(
        [
            (name, mx.array(0.5 * drawn.normal(size=array.shape), mx.float32))
            for name, array in named_arrays(module.trainable_parameters()).items()
        ]
    )
    module.eval()
    return module


def text() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(T, C))


def reference(mixing: str, w: Arrays) -> np.ndarray:
    """The output for one text, from the recurrence in float64."""
    x = text()
    q, k = ((x @ w[f"W_{name}.weight"].T).reshape(T, H, -1) for name in ("query", "key"))
    s = np.where(np.tri(T) == 1, np.einsum("ihd,jhd->hij", q, k) * (C // H) ** -0.5, -np.inf)
    weights = REFERENCES["mixing"][mixing](w, x, s)
    values = (x @ w["W_value.weight"].T).reshape(T, H, -1).swapaxes(0, 1)
    heads = (weights @ values).swapaxes(0, 1).reshape(T, -1)
    return heads @ w["out_proj.weight"].T + w["out_proj.bias"]


def numbers(module: Attention) -> Arrays:
    return {name: np.array(a).astype(np.float64) for name, a in named_arrays(module).items()}


@pytest.mark.parametrize("mixing", FORMS)
def test_the_output_is_that_of_the_recurrence(mixing):
    module = layer(mixing)
    y = module(mx.array(text()[None], mx.float32))[0]
    np.testing.assert_allclose(y, reference(mixing, numbers(module)), atol=1e-5)


@pytest.mark.parametrize("mixing", FORMS)
def test_the_gradient_of_every_weight_is_that_of_the_recurrence(mixing):
    module, x = layer(mixing), mx.array(text()[None], mx.float32)
    drawn = np.random.default_rng(1)
    R = drawn.normal(size=(T, C))

    def loss(parameters: dict[str, Any]) -> mx.array:
        module.update(parameters)
        return (module(x)[0] * mx.array(R, mx.float32)).sum()

    w = numbers(module)
    gradients = named_arrays(mx.grad(loss)(module.trainable_parameters()))
    for name, gradient in gradients.items():
        direction = drawn.normal(size=gradient.shape)
        direction /= np.linalg.norm(direction)

        def moved(step: float, name: str = name, direction: np.ndarray = direction) -> float:
            return float((reference(mixing, {**w, name: w[name] + step * direction}) * R).sum())

        expected, found = (
            (moved(1e-5) - moved(-1e-5)) / 2e-5,
            (np.array(gradient) * direction).sum(),
        )
        assert abs(found - expected) < 1e-5 * max(1.0, float(mx.abs(gradient).max())), name


@pytest.mark.parametrize(("mixing", "settings"), DECODED)
@pytest.mark.parametrize("pieces", [[1] * T, [6, 1, 6]])
def test_decoding_with_room_for_more_is_the_full_pass(mixing, pieces, settings):
    module, x = layer(mixing, **settings), mx.array(text()[None], mx.float32)
    cache, start, read = make_cache(T + 4), 0, []
    for length in pieces:
        read.append(module(x[:, start : start + length], cache))
        start += length
    np.testing.assert_allclose(mx.concatenate(read, axis=1), module(x), atol=1e-5)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("pieces", [[1] * T, [6, 1, 6], [T]])
@pytest.mark.parametrize("mixing", RULES)
def test_decoding_by_a_state_is_the_full_pass(mixing, pieces, settings):
    module, x = layer(mixing, **settings), mx.array(text()[None], mx.float32)
    cache, start, read = make_cache(T, caches_tokens=False), 0, []
    for length in pieces:
        read.append(module(x[:, start : start + length], cache))
        start += length
    np.testing.assert_allclose(mx.concatenate(read, axis=1), module(x), atol=1e-5)


def test_a_state_does_not_grow_with_the_text():
    """Each head keeps a matrix of 8 x 8; keys and values of 13 tokens would be 416 numbers."""
    module, cache = layer("gated_delta"), make_cache(T, caches_tokens=False)
    module(mx.array(text()[None], mx.float32), cache)
    assert [buffer.shape for buffer in cache.buffers] == [(1, H, 8, 8)]
    cost = attention_cost(module.config)
    assert (cost.cache_floats, cost.state_floats) == (0, H * 8 * 8)


def test_a_state_has_room_for_the_context_only():
    cache = make_cache(T, caches_tokens=False)
    with pytest.raises(ConfigError, match="14 tokens are more than the cache has room for"):
        layer("delta")(mx.zeros((1, T + 1, C)), cache)


@pytest.mark.parametrize("logits", ["none", "forget"])
@pytest.mark.parametrize("pieces", [[1] * T, [6, 1, 6]])
def test_path_decodes_in_a_window_as_it_reads(pieces, logits):
    """Reflections before the window stand between no query and key."""
    module, x = layer("path", window=4, logits=logits), mx.array(text()[None], mx.float32)
    cache, start, read = make_cache(T, 4), 0, []
    for length in pieces:
        read.append(module(x[:, start : start + length], cache))
        start += length
    np.testing.assert_allclose(mx.concatenate(read, axis=1), module(x), atol=1e-5)


@pytest.mark.parametrize("size", [1, 2, 3, 8, 13, 64])
def test_the_inverse_by_halves_is_exact_for_equal_keys(size):
    """The hardest case: every element below the diagonal is 1, and powers of L grow to 10^17."""
    L = np.tril(np.ones((2, 3, size, size)), -1)
    inverse = np.array(unit_lower_inverse(mx.array(L, mx.float32)))
    np.testing.assert_allclose(inverse, np.linalg.inv(np.eye(size) + L), atol=1e-6)


def test_a_key_that_comes_again_is_overwritten():
    """With beta = 1 and no decay a state is a memory: the second value of a key replaces the first.

    A sum of values by key, as in linear attention, would return both.
    """
    first, second = np.eye(4)[:2]
    k = mx.array(np.stack([first, second, first])[None, None], mx.float32)
    gates = mx.concatenate([mx.ones((1, 1, 3, 1)), mx.zeros((1, 1, 3, 1))], axis=-1)
    weights = delta_weights(k, k, gates[..., :1], gates[..., 1:])[0, 0]
    np.testing.assert_allclose(weights, np.eye(3), atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"logits": "forget"}, "reads no scores, which logits=forget changes: leave --logits out"),
        ({"position": "alibi"}, "which position=alibi changes: use learned, rope or none"),
        ({"window": 4}, "which window=4 hides: leave --window out"),
    ],
)
@pytest.mark.parametrize("mixing", [*RULES, "linear"])
def test_what_acts_on_scores_is_refused(mixing, settings, reason):
    with pytest.raises(ConfigError, match=reason):
        AttentionConfig(**SIZES, mixing=mixing, **settings)


def test_path_refuses_hooks_that_do_not_add_to_scores():
    with pytest.raises(ConfigError, match="changes scores after logits=temperature"):
        AttentionConfig(**SIZES, mixing="path", logits="temperature")


KEEPS_KEYS = ("standard", "separate", "merged-output", "separate-output")


@pytest.mark.parametrize("name", [name for name in CONVERSIONS if name not in KEEPS_KEYS])
def test_a_conversion_of_queries_and_keys_is_refused_with_the_reason(name):
    reasons = {
        "no-query": "heads would each read their own slice",
        "no-key": "heads would each read their own slice",
        "no-out-proj": "weights of mixing=gated_delta need not add up to 1",
    }
    reason = reasons.get(name, "mixing=gated_delta reads queries and keys themselves")
    with pytest.raises(ConfigError, match=reason):
        find_conversion(name).changes(layer("gated_delta").config)


@pytest.mark.parametrize(
    "settings", [{"position": "rope"}, {"qk_norm": True}, {"short_conv": "linear"}]
)
def test_selection_refuses_what_changes_queries_after_their_map(settings):
    with pytest.raises(ConfigError, match="changes them afterwards"):
        layer("selective", **settings)


def test_what_the_first_head_selects_is_withdrawn_from_later_tokens_only():
    """One-hot queries and keys: token 2 selects token 1, so token 3 sees less of it."""
    module = layer("selective")
    k = mx.eye(C)[None, None, :4]
    q = mx.zeros_like(k).at[0, 0, 2, 1].add(8.0)
    kept = mx.concatenate([q, mx.ones((1, 1, 4, 1))], -1)
    s = mx.where(mx.tri(4) == 1, 0.0, -mx.inf)[None, None]
    weights = np.array(module.maps.mixing.apply(module, s, q, k, kept))[0, 0]
    lowered = np.exp(-8.0 * module.config.scale)
    np.testing.assert_allclose(weights[2, :3], 1 / 3, atol=1e-6)
    np.testing.assert_allclose(weights[3, 1] / weights[3, 2], lowered, atol=1e-6)


def test_no_token_withdraws_itself_or_the_first_one():
    module = layer("selective")
    q = k = 3.0 * mx.ones((1, 1, 2, C))
    kept = mx.concatenate([q, mx.ones((1, 1, 2, 1))], -1)
    s = mx.where(mx.tri(2) == 1, 0.0, -mx.inf)[None, None]
    weights = np.array(module.maps.mixing.apply(module, s, q, k, kept))[0, 0]
    np.testing.assert_allclose(weights[1], 0.5, atol=1e-6)
