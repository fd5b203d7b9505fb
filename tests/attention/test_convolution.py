"""Short convolutions of queries, keys and values, and the output norm of gated DeltaNet."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlx_attn.arrays import named_arrays
from mlx_attn.attention.analysis import NoMatrix, attention_cost, qk_circuit
from mlx_attn.attention.attention import Attention, standard_forward
from mlx_attn.attention.cache import make_cache
from mlx_attn.attention.config import CHOICES, VARIANTS, AttentionConfig, choices_of
from mlx_attn.attention.conversions import CONVERSIONS, find_conversion
from mlx_attn.attention.layer import choice, split_heads, value_linear
from mlx_attn.errors import ConfigError
from mlx_attn.interop.choice_source import NotPortable
from mlx_attn.interop.shipped import shipped_code
from mlx_attn.model.config import config_from
from mlx_attn.model.gpt import GPT, model_cost

C, T, H = 16, 11, 2
SIZES: dict[str, Any] = {"d_in": C, "d_out": C, "context_length": T, "n_heads": H}
DELTANET = VARIANTS["gated-deltanet"].settings
FORMS: list[dict[str, Any]] = [
    {},
    {"output": "normed"},
    {"output": "normed_gated", "short_conv": "none"},
    DELTANET,
    {**DELTANET, "short_conv": "linear"},
]
Arrays = dict[str, np.ndarray]


def layer(**settings: Any) -> Attention:
    chosen = {"position": "none", "short_conv": "silu", **settings}
    module = Attention(AttentionConfig(**SIZES, **chosen))
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


def convolved(y: np.ndarray, c: np.ndarray, kind: str) -> np.ndarray:
    """Convolve each column of y [T, H, D], one token and one earlier token at a time."""
    mixed = np.zeros_like(y)
    for t in range(len(y)):
        for back in range(min(len(c), t + 1)):
            mixed[t] += c[back] * y[t - back]
    return mixed / (1 + np.exp(-mixed)) if kind == "silu" else mixed


def reference(config: AttentionConfig, w: Arrays, x: np.ndarray) -> np.ndarray:
    """Return the output for one text, in float64."""
    parts = []
    for name in ("query", "key", "value"):
        y = (x @ w[f"W_{name}.weight"].T).reshape(T, H, -1)
        if config.short_conv != "none":
            y = convolved(y, w[f"conv_{name}"], config.short_conv)
        parts.append(y)
    q, k, v = parts
    s = np.where(np.tri(T) == 1, np.einsum("ihd,jhd->hij", q, k) * config.scale, -np.inf)
    weights = np.stack([_weights(config, w, x, s, q, k, h) for h in range(H)])
    heads = np.einsum("hij,jhd->ihd", weights, v)
    if config.output != "linear":
        heads = heads / np.sqrt((heads**2).mean(axis=2, keepdims=True) + 1e-6) * w["head_gain"]
    joined = heads.reshape(T, -1)
    if config.output == "normed_gated":
        gate = x @ w["W_gate.weight"].T
        joined = joined * gate / (1 + np.exp(-gate))
    return joined @ w["out_proj.weight"].T + w["out_proj.bias"]


def _weights(
    config: AttentionConfig, w: Arrays, x: np.ndarray, s: np.ndarray, q: Any, k: Any, h: int
) -> np.ndarray:
    if config.mixing == "softmax":
        powers = np.exp(s[h] - s[h].max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)
    beta = 1 / (1 + np.exp(-x @ w["W_beta.weight"].T))
    step = np.log1p(np.exp(x @ w["W_decay.weight"].T + w["decay_bias"]))
    alpha = np.exp(-np.exp(w["log_rate"]) * step)
    q, k = (y / np.sqrt((y**2).sum(axis=2, keepdims=True) + 1e-6) for y in (q, k))
    S, rows = np.zeros((C // H, T)), []
    for t, unit in enumerate(np.eye(T)):
        S = alpha[t, h] * S
        S = S + beta[t, h] * np.outer(k[t, h], unit - S.T @ k[t, h])
        rows.append(S.T @ q[t, h])
    return np.stack(rows)


def numbers(module: Attention) -> Arrays:
    return {name: np.array(a).astype(np.float64) for name, a in named_arrays(module).items()}


@pytest.mark.parametrize("settings", FORMS)
def test_the_output_is_the_reference_s(settings):
    module = layer(**settings)
    y = module(mx.array(text()[None], mx.float32))[0]
    expected = reference(module.config, numbers(module), text())
    np.testing.assert_allclose(y, expected, atol=1e-5)


@pytest.mark.parametrize("settings", FORMS)
def test_the_gradient_of_every_weight_is_the_reference_s(settings):
    module, x = layer(**settings), mx.array(text()[None], mx.float32)
    drawn = np.random.default_rng(1)
    R = drawn.normal(size=(T, C))

    def loss(parameters: dict[str, Any]) -> mx.array:
        module.update(parameters)
        return (module(x)[0] * mx.array(R, mx.float32)).sum()

    w = numbers(module)
    gradients = named_arrays(mx.grad(loss)(module.trainable_parameters()))
    assert len(gradients) == len(w)
    for name, gradient in gradients.items():
        direction = drawn.normal(size=gradient.shape)
        direction /= np.linalg.norm(direction)
        ends = ({**w, name: w[name] + step * direction} for step in (1e-5, -1e-5))
        more, less = ((reference(module.config, end, text()) * R).sum() for end in ends)
        found = (np.array(gradient) * direction).sum()
        size = max(1.0, float(mx.abs(gradient).max()))
        assert abs(found - (more - less) / 2e-5) < 1e-5 * size, name


@pytest.mark.parametrize("kind", ["linear", "silu"])
@pytest.mark.parametrize("pieces", [[1] * T, [5, 1, 5], [2, 9], [T]])
@pytest.mark.parametrize(
    "settings",
    [
        {"n_kv_heads": 1},
        {"position": "rope", "qk_norm": True},
        {"window": 3, "position": "alibi"},
        {"mixing": "gated_delta"},
        {"value": "residual", "logits": "forget"},
        {"output": "differential", "score": "paired"},
    ],
)
def test_decoding_is_the_full_pass(kind, pieces, settings):
    module, x = layer(short_conv=kind, **settings), mx.array(text()[None], mx.float32)
    c, start, read = module.config, 0, []
    cache = make_cache(T, c.cache_window, c.caches_tokens)
    for length in pieces:
        read.append(module(x[:, start : start + length], cache))
        start += length
    np.testing.assert_allclose(mx.concatenate(read, axis=1), module(x), atol=1e-5)


def test_the_cache_holds_the_last_three_rows_of_each_part():
    module, cache = layer(n_kv_heads=1), make_cache(T)
    module(mx.zeros((1, 5, C)), cache)
    assert [rows.shape for rows in cache.rows] == [(1, H, 3, 8), (1, 1, 3, 8), (1, 1, 3, 8)]
    assert cache.bytes_per_token == 4 * 2 * 8
    assert attention_cost(module.config).state_floats == 3 * 8 * (H + 1 + 1)


def test_a_linear_convolution_starts_as_the_layer_without_it():
    mx.random.seed(0)
    plain = Attention(AttentionConfig(**SIZES))
    convolving = Attention(AttentionConfig(**SIZES, short_conv="linear"))
    convolving.load_weights(list(named_arrays(plain).items()), strict=False)
    x = mx.array(text()[None], mx.float32)
    np.testing.assert_allclose(convolving(x), plain(x), atol=1e-6)


def test_without_a_convolution_the_standard_layer_is_untouched():
    assert Attention(AttentionConfig(**SIZES)).forward is standard_forward


def test_the_weights_of_a_convolution_are_counted():
    sizes = {"vocab_size": 9, "emb_dim": C, "n_heads": H, "n_layers": 1, "context_length": T}
    plain, convolving = (
        model_cost(config_from({**sizes, "short_conv": kind})) for kind in ("none", "silu")
    )
    assert convolving.parameters - plain.parameters == 4 * 3 * C
    assert convolving.multiply_adds - plain.multiply_adds == 4 * 3 * C


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"short_conv": "gelu"}, "must be one of none, linear, silu"),
        ({"score": "merged"}, "score=merged caches what comes before"),
        ({"value": "from_key"}, "value=from_key caches"),
        ({"output": "merged"}, "output=merged caches"),
    ],
)
def test_what_cannot_be_convolved_is_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        layer(**settings)


@pytest.mark.parametrize("to", CONVERSIONS)
def test_every_conversion_refuses_a_convolution(to):
    with pytest.raises(ConfigError, match="short_conv=silu mixes the queries, keys and values"):
        find_conversion(to).changes(layer().config)


def test_a_convolution_leaves_no_matrix_of_a_head():
    with pytest.raises(NoMatrix, match="short_conv=silu"):
        qk_circuit(layer())


def test_a_user_s_linear_map_is_tried_without_the_convolution_s_silu():
    choices_of("value")
    choice(
        "value", "own", "v = x W", weights={"W_value": value_linear}, shape=lambda c: (H, C // H)
    )(lambda a, x, k: split_heads(a.W_value(x), H))
    try:
        assert layer(value="own").maps.value.name == "own"
    finally:
        CHOICES["value"].pop("own")


def test_an_export_of_a_convolution_is_refused_with_the_reason():
    model = GPT(config_from({"vocab_size": 9, "emb_dim": C, "n_heads": H, "short_conv": "silu"}))
    with pytest.raises(NotPortable, match="its convolutions read earlier tokens"):
        shipped_code(model, "mlx")


def test_heads_of_a_norm_have_the_same_size_however_small_they_are():
    module = layer(output="normed", short_conv="none")
    heads = mx.array(np.random.default_rng(2).normal(size=(1, H, T, 8)), mx.float32)
    x = mx.zeros((1, T, C))
    np.testing.assert_allclose(module.output(0.1 * heads, x), module.output(heads, x), atol=1e-3)
