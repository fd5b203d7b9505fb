"""Every layer keeps the laws that the package relies on; a choice that breaks one is refused.

The package's own variants are held to them here, and only here: a training pays nothing for it.
"""

from collections.abc import Callable, Iterator
from itertools import islice, product
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mlx_attn.arrays import named_arrays
from mlx_attn.attention import laws
from mlx_attn.attention.attention import Attention
from mlx_attn.attention.cache import make_cache
from mlx_attn.attention.config import (
    CHOICES,
    MAPS,
    POSITIONS,
    VARIANTS,
    AttentionConfig,
    choice_of,
    choices_of,
)
from mlx_attn.attention.laws import LawBroken
from mlx_attn.attention.layer import choice, merge_heads, split_heads
from mlx_attn.errors import ConfigError
from mlx_attn.machine.exponentials import softmax
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT
from mlx_attn.sampling.config import SamplerConfig
from mlx_attn.sampling.decoding import DecodingState, decode
from mlx_attn.sampling.samplers import Sampler

SIZES: dict[str, Any] = {"d_in": 16, "d_out": 16, "context_length": 12, "n_heads": 4}
SEPARATE = choice_of("score", "separate")
LINEAR: Any = choice_of("value", "linear")


@pytest.fixture
def own() -> Iterator[Callable[..., Attention]]:
    """Makes a layer with a choice of one's own, which is forgotten afterwards."""
    before = {name: [*choices_of(name)] for name in MAPS}

    def make(
        map_name: str,
        apply: Callable[..., Any],
        settings: Any = (),
        name: str = "own",
        **facts: Any,
    ) -> Attention:
        choice(map_name, name, "a formula", **facts)(apply)
        layer = Attention(AttentionConfig(**{**SIZES, map_name: name, **dict(settings)}))
        layer.eval()
        return layer

    yield make
    for name, table in CHOICES.items():
        for word in {*table} - {*before[name]}:
            del table[word]


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_keeps_every_law(variant, position):
    settings: dict[str, Any] = {**SIZES, **VARIANTS[variant].maps, "vocab_size": 7}
    for window, qk_norm in product((0, 5), (False, True)):
        try:
            config = AttentionConfig(
                **settings, position=position, window=window, qk_norm=qk_norm, qkv_bias=True
            )
        except ConfigError:
            continue
        layer = laws.with_other_weights(Attention(config))
        assert laws.broken_law(layer) == "", (window, qk_norm)


# Later tokens.


def peek(a: Any, x: mx.array, k: mx.array) -> mx.array:
    return split_heads(a.W_value(mx.concatenate([x[:, 1:], x[:, :1]], axis=1)), 4)


def shiftleak(a: Any, s: mx.array) -> mx.array:
    return s + 0.5 * mx.concatenate([s[..., 1:], mx.zeros_like(s[..., :1])], axis=-1)


@pytest.mark.parametrize(
    ("map_name", "apply", "facts"),
    [
        ("logits", lambda a, s: s + s[..., ::-1], {}),
        ("logits", shiftleak, {}),
        ("value", peek, {"weights": LINEAR.weights, "shape": LINEAR.shape}),
        ("mixing", lambda a, s: softmax(s) + 1e-3, {}),
        ("score", lambda a, x: (split_heads(x - x.mean(1, keepdims=True), 4),) * 2, {}),
    ],
    ids=["leak", "shiftleak", "peek", "beyond the mask", "mean of the text"],
)
def test_a_choice_that_reads_later_tokens_is_refused(own, map_name, apply, facts):
    with pytest.raises(LawBroken, match=rf"^{map_name}=own lets a token read later ones: with tok"):
        own(map_name, apply, **facts)


def test_a_leak_that_a_weight_of_zero_hides_at_the_start_is_refused_too(own):
    gain = {"leak": lambda c: mx.zeros((1,))}
    with pytest.raises(LawBroken, match="later ones"):
        own("logits", lambda a, s: s + a.leak * s[..., ::-1], weights=gain)


def test_the_one_of_several_choices_that_is_to_blame_is_named(own):
    own("mixing", lambda a, s: softmax(s), name="honest")
    with pytest.raises(LawBroken, match=r"^logits=own lets"):
        own("logits", lambda a, s: s + s[..., ::-1], {"mixing": "honest"})


# Decoding.


def sharper(a: Any, s: mx.array, kept: mx.array) -> mx.array:
    """Scale the scores of a token by what all tokens up to it have asked for."""
    total = mx.cumsum(kept, axis=2)
    return s * (1 + total[:, :, -s.shape[2] :])


REMEMBERS = {
    "remembers": lambda a, x: mx.sigmoid(a.W_sharp(x))[:, None],
    "weights": {"W_sharp": lambda c: nn.Linear(c.d_in, 1)},
}


def test_a_hook_that_needs_more_than_the_window_is_refused(own):
    with pytest.raises(LawBroken, match=r"logits=own computes something .* remembers_all=True"):
        own("logits", sharper, {"window": 4}, **REMEMBERS)


def test_without_a_window_it_needs_no_more(own):
    assert own("logits", sharper, **REMEMBERS).config.cache_window == 0


def test_a_hook_that_remembers_all_decodes_as_it_reads_with_a_window(own):
    layer = own("logits", sharper, {"window": 4}, remembers_all=True, **REMEMBERS)
    x = mx.array(np.random.default_rng(0).normal(size=(2, 12, 16)), mx.float32)
    cache = make_cache(12, layer.config.cache_window)
    read = mx.concatenate([layer(x[:, t : t + 1], cache) for t in range(12)], axis=1)
    assert mx.allclose(read, layer(x), atol=1e-5)


def test_a_model_with_such_a_hook_writes_the_text_that_it_would_without_a_cache(own):
    own("logits", sharper, remembers_all=True, **REMEMBERS)
    sizes: dict[str, Any] = {"vocab_size": 20, "context_length": 48, "emb_dim": 16, "n_heads": 4}
    model = GPT(GPTConfig(**sizes, n_layers=2, position="alibi", window=4, logits="own"))
    model.load_weights([(name, 4 * array) for name, array in named_arrays(model).items()])
    model.eval()
    sampler = Sampler(SamplerConfig(temp=0.0))
    written = [token for (token,) in islice(decode(DecodingState(model), [3, 4], sampler), 40)]
    tokens = [3, 4]
    for _ in written:
        tokens.append(int(model(mx.array([tokens]))[0, -1].argmax()))
    assert written == tokens[2:]


def test_a_map_that_needs_the_token_before_cannot_decode(own):
    def shifted(a: Any, x: mx.array, k: mx.array) -> mx.array:
        before = mx.concatenate([mx.zeros_like(x[:, :1]), x[:, :-1]], axis=1)
        return split_heads(a.W_value(before), 4)

    with pytest.raises(
        LawBroken, match=r"when it decodes with a cache.*a map sees new tokens only"
    ):
        own("value", shifted, weights=LINEAR.weights, shape=LINEAR.shape)


@pytest.mark.parametrize(
    ("map_name", "apply", "facts", "complaint"),
    [
        (
            "logits",
            lambda a, s, kept: s,
            {"remembers": lambda a, x: x},
            r"remembers= of logits=own must return, .* \(2, any, 3, any\), and returned \(2, 3, 16",
        ),
        (
            "value",
            lambda a, x, k: split_heads(a.W_value(x), 4),
            {"weights": LINEAR.weights, "after": lambda a, y: merge_heads(y)},
            r"value=own returns from after= the shape \(2, 12, 64\), and must \(2, 4, 12, 4\)",
        ),
        (
            "value",
            lambda a, x, k: split_heads(a.W_value(x), 4),
            {"weights": LINEAR.weights, "after": lambda a, y: 2 * LINEAR.after(a, y)},
            "value=own computes something else with after= than before the weighted sum, by",
        ),
        (
            "score",
            lambda a, x: (split_heads(x, 4), x[:, None, :, :4]),
            {"cache": "x"},
            "score=own cannot be computed or decoded|keeps x as its key",
        ),
    ],
    ids=["remembers", "shape of after", "numbers of after", "cache"],
)
def test_what_decoding_reads_is_tried(own, map_name, apply, facts, complaint):
    with pytest.raises(ConfigError, match=complaint):
        own(map_name, apply, **facts)


# Numbers.


def test_random_numbers_in_evaluation_are_refused(own):
    with pytest.raises(LawBroken, match="computes something else each time"):
        own("logits", lambda a, s: s + mx.random.normal(s.shape))


def test_random_numbers_in_training_are_not(own):
    def noisy(a: Any, s: mx.array) -> mx.array:
        return s + mx.random.normal(s.shape) if a.training else s

    assert own("logits", noisy)


def test_what_a_script_draws_does_not_depend_on_the_trial(own):
    mx.random.seed(3)
    Attention(AttentionConfig(**SIZES))
    drawn = mx.random.normal((2,))
    mx.random.seed(3)
    own("logits", lambda a, s: s)
    assert mx.array_equal(mx.random.normal((2,)), drawn)


def test_numbers_that_are_not_finite_are_refused(own):
    with pytest.raises(LawBroken, match="gives numbers that are not finite"):
        own("logits", lambda a, s: mx.log(-mx.abs(s) - 1))


def cosine(a: Any, x: mx.array) -> tuple[mx.array, ...]:
    q, k = SEPARATE.apply(a, x)
    return tuple(y / mx.linalg.norm(y, axis=-1, keepdims=True) for y in (q, k))


GATED = {"W_gate": lambda c: nn.Linear(c.d_in, c.d_out), **choice_of("output", "linear").weights}


@pytest.mark.parametrize(
    ("map_name", "apply", "facts"),
    [
        ("score", cosine, {"weights": SEPARATE.weights, "shape": SEPARATE.shape}),
        (
            "value",
            lambda a, x, k: split_heads(nn.relu(a.W_value(x)), 4),
            {"weights": LINEAR.weights},
        ),
        (
            "output",
            lambda a, heads, x: a.out_proj(merge_heads(heads) * mx.sigmoid(a.W_gate(x))),
            {"weights": GATED},
        ),
    ],
    ids=["cosine", "relu", "a gate of x"],
)
def test_a_map_is_affine_if_it_is_not_if_it_says_so(own, map_name, apply, facts):
    complaint = rf"{map_name}=own is not linear up to a bias: .*; declare it with affine=False"
    with pytest.raises(LawBroken, match=complaint):
        own(map_name, apply, **facts)
    assert not own(map_name, apply, name="declared", affine=False, **facts).config.is_affine


@pytest.mark.parametrize(
    ("map_name", "apply", "facts", "complaint"),
    [
        (
            "mixing",
            lambda a, s: softmax(s) / 2,
            {"sums_to_one": True},
            "gives weights that do not add up to 1: leave out sums_to_one= of mixing=own",
        ),
        (
            "mixing",
            lambda a, s: mx.sigmoid(s),
            {"shift_invariant": True},
            "gives other weights if a constant is added .* shift_invariant= of mixing=own",
        ),
        (
            "logits",
            lambda a, s: mx.tanh(s),
            {"shift_invariant": True},
            "gives other weights if a constant is added .* shift_invariant= of logits=own",
        ),
        (
            "logits",
            lambda a, s: 2 * s + 1,
            {"score_factor": lambda a: mx.array([2.0] * 4)},
            "does more than multiply scores: leave out score_factor= of logits=own",
        ),
        (
            "value",
            lambda a, x, k: k + 0.0,
            {"shape": lambda c: (4, 4)},
            "makes values from keys: declare value=own with reads_keys=True",
        ),
    ],
)
def test_a_fact_that_is_declared_and_is_not_so_is_refused(own, map_name, apply, facts, complaint):
    with pytest.raises(LawBroken, match=complaint):
        own(map_name, apply, **facts)


def test_facts_that_are_so_are_kept(own):
    own("mixing", lambda a, s: softmax(s), sums_to_one=True, shift_invariant=True)
    own("logits", lambda a, s: 2 * s, score_factor=lambda a: mx.array([2.0] * 4))
    own("value", lambda a, x, k: 2 * k, shape=SEPARATE.shape, reads_keys=True)


def test_a_choice_is_tried_once(own):
    calls = []

    def counted(a: Any, s: mx.array) -> mx.array:
        calls.append(s.shape)
        return s

    made = own("logits", counted)
    first = len(calls)
    Attention(made.config)
    assert len(calls) == first + 1  # its shape only


def test_a_choice_for_one_size_only_is_tried_at_that_size(own):
    layer = own(
        "logits",
        lambda a, s: s + a.table[: s.shape[2], : s.shape[3]] if s.shape[3] == 3 else s,
        {"d_in": 64, "d_out": 64},
        weights={"table": lambda c: mx.zeros((c.context_length, {64: 12}[c.d_in]))},
    )
    assert layer.table.shape == (12, 12)
