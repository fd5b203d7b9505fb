"""A mixing may read queries, keys and numbers of x beside the scores, in training and decoding."""

from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlx_attn.attention.analysis import why_not_one_matrix
from mlx_attn.attention.attention import Attention
from mlx_attn.attention.cache import Places, make_cache
from mlx_attn.attention.config import CHOICES, MAPS, AttentionConfig, choices_of
from mlx_attn.attention.conversions import find_conversion
from mlx_attn.attention.layer import choice
from mlx_attn.convert.model import fold_norms
from mlx_attn.errors import ConfigError
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT

C, H, T = 16, 2, 7
Make = Callable[..., Attention]


@pytest.fixture
def layer() -> Iterator[Make]:
    """A layer whose mixing is the test's own function; it is forgotten afterwards."""
    for name in MAPS:
        choices_of(name)

    def make(apply: Callable[..., Any], facts: dict[str, Any], **settings: Any) -> Attention:
        choice("mixing", "own", "a formula", **facts)(apply)
        sizes: dict[str, Any] = {"d_in": C, "d_out": C, "context_length": T, "n_heads": H}
        module = Attention(AttentionConfig(**sizes, mixing="own", **settings))
        module.eval()
        return module

    yield make
    CHOICES["mixing"].pop("own", None)


def text() -> mx.array:
    return mx.array(np.random.default_rng(0).normal(size=(2, T, C)), mx.float32)


def shares(a: Attention, s: mx.array, q: mx.array, k: mx.array) -> mx.array:
    """|q k| over its sum over the keys that are seen."""
    k = mx.repeat(k, q.shape[1] // k.shape[1], axis=1)
    sizes = mx.where(s > -mx.inf, mx.abs(q @ k.swapaxes(2, 3)) + 1e-3, 0.0)
    return sizes / sizes.sum(axis=-1, keepdims=True)


def powers(a: Attention, x: mx.array) -> mx.array:
    return x[:, None].square().sum(axis=-1, keepdims=True)


def weighed(a: Attention, s: mx.array, kept: mx.array) -> mx.array:
    """Each key counts by a number of its token."""
    return mx.where(s > -mx.inf, kept.swapaxes(2, 3), 0.0)


@pytest.mark.parametrize("settings", [{"position": "rope"}, {"qk_norm": True}, {"n_kv_heads": 1}])
def test_a_mixing_reads_the_queries_and_keys_of_the_scores(layer, settings):
    seen: list[mx.array] = []

    def spy(a, s, q, k):
        seen[:] = [q, k]
        return shares(a, s, q, k)

    module = layer(spy, {"reads_keys": True}, **settings)
    module(text())
    for found, expected in zip(seen, module.queries_and_keys(text()), strict=True):
        assert mx.allclose(found, expected, atol=1e-6)


def test_a_mixing_reads_what_it_remembers_of_x_after_the_memory_of_the_hooks(layer):
    module = layer(weighed, {"remembers": powers}, logits="forget")
    weights = module.weights(text())
    expected = np.tril(np.ones((T, T))) * np.array(powers(module, text())).swapaxes(2, 3)
    np.testing.assert_allclose(weights, np.broadcast_to(expected, weights.shape), rtol=1e-6)


@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("pieces", [[1] * T, [3, 4]])
@pytest.mark.parametrize(
    ("apply", "facts"),
    [(shares, {"reads_keys": True, "sums_to_one": True}), (weighed, {"remembers": powers})],
)
def test_decoding_is_the_full_pass(layer, apply, facts, pieces, window):
    module, x = layer(apply, facts, window=window, logits="forget", position="rope"), text()
    cache, start, read = make_cache(T, window), 0, []
    for length in pieces:
        read.append(module(x[:, start : start + length], cache))
        start += length
    np.testing.assert_allclose(mx.concatenate(read, axis=1), module(x), atol=2e-5)


def test_a_false_sum_is_refused(layer):
    with pytest.raises(ConfigError, match="leave out sums_to_one= of mixing=own"):
        layer(weighed, {"remembers": powers, "sums_to_one": True})


def test_a_mixing_that_looks_ahead_is_refused(layer):
    with pytest.raises(ConfigError, match="mixing=own lets a token read later ones"):
        layer(lambda a, s, q, k: shares(a, 0 * mx.ones_like(s), q, k), {"reads_keys": True})


def test_another_shape_is_refused(layer):
    with pytest.raises(ConfigError, match=r"mixing=own must return, .* \(2, 2, 3, 3\)"):
        layer(lambda a, s, q, k: k, {"reads_keys": True})


def test_a_conversion_that_would_change_keys_is_refused(layer):
    config = layer(shares, {"reads_keys": True}, position="none").config
    for name in ("merged", "slim"):
        with pytest.raises(ConfigError, match="mixing=own reads queries and keys themselves"):
            find_conversion(name).changes(config)
    assert find_conversion("merged-output").changes(config)


def test_folding_a_norm_into_a_mixing_that_reads_x_is_refused(layer):
    layer(weighed, {"remembers": powers})
    model = GPT(GPTConfig(vocab_size=5, emb_dim=C, n_heads=H, n_layers=1, mixing="own"))
    with pytest.raises(ConfigError, match="mixing=own uses x itself"):
        fold_norms(model)


def test_folding_a_norm_into_keys_that_a_mixing_reads_is_refused(layer):
    layer(shares, {"reads_keys": True, "input_weights": ()})
    sizes: dict[str, Any] = {
        "vocab_size": 5,
        "emb_dim": C,
        "n_heads": H,
        "n_layers": 1,
        "bias": False,
    }
    model = GPT(GPTConfig(**sizes, score="merged", mixing="own"))
    with pytest.raises(ConfigError, match="mixing=own reads the keys, which are x here"):
        fold_norms(model)


def test_the_matrix_of_scores_is_not_all_that_such_a_mixing_reads(layer):
    config = layer(shares, {"reads_keys": True}).config
    assert "mixing=own reads queries and keys themselves" in why_not_one_matrix(config)


def test_the_activations_of_a_model_include_what_its_mixing_reads(layer):
    def both(a, s, q, k, kept):
        return shares(a, s, q, k) * kept.swapaxes(2, 3)

    layer(both, {"reads_keys": True, "remembers": powers})
    sizes: dict[str, Any] = {"vocab_size": 5, "emb_dim": C, "n_heads": H, "n_layers": 2}
    model, tokens = GPT(GPTConfig(**sizes, mixing="own")), mx.arange(5)[None]
    model.eval()
    logits, _ = model.run_with_cache(tokens)
    assert mx.allclose(logits, model(tokens), atol=1e-5)


def test_standard_attention_hands_its_mixing_only_scores():
    sizes: dict[str, Any] = {"d_in": C, "d_out": C, "context_length": T, "n_heads": H}
    module = Attention(AttentionConfig(**sizes))
    (q, k), places = module.queries_and_keys(text()), Places.of_text(T)
    assert module.maps.with_memory == ()
    assert mx.array_equal(module.mix(q, k, places), module.weights(text()))
