"""A mixing may read queries, keys and numbers of x as well as scores, in training and decoding."""

import mlx.core as mx
import numpy as np
import pytest

from mlx_attn.activations import run_with_cache
from mlx_attn.attention.attention import Attention
from mlx_attn.convert.circuits import why_not_one_matrix
from mlx_attn.convert.conversions import find_conversion
from mlx_attn.convert.model import fold_norms
from mlx_attn.errors import ConfigError
from tests.attention.conftest import text
from tests.runs import small_gpt

T = 12


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
def test_a_mixing_reads_the_queries_and_keys_of_the_scores(own, settings):
    seen: list[mx.array] = []

    def spy(a, s, q, k):
        seen[:] = [q, k]
        return shares(a, s, q, k)

    module = own("mixing", spy, settings, reads_keys=True)
    module(text())
    for read, expected in zip(seen, module.queries_and_keys(text()), strict=True):
        assert mx.allclose(read, expected, atol=1e-6)


def test_a_mixing_reads_what_it_remembers_of_x_after_the_memory_of_the_hooks(own):
    module = own("mixing", weighed, {"logits": "forget"}, remembers=powers)
    weights = module.weights(text())
    expected = np.tril(np.ones((T, T))) * np.array(powers(module, text())).swapaxes(2, 3)
    np.testing.assert_allclose(weights, np.broadcast_to(expected, weights.shape), rtol=1e-6)


def test_what_would_change_keys_is_refused(own):
    config = own("mixing", shares, reads_keys=True, input_weights=()).config
    with pytest.raises(ConfigError, match="mixing=own reads queries and keys themselves"):
        find_conversion("merged").changes(config)
    assert find_conversion("merged-output").changes(config)
    assert "mixing=own reads queries and keys themselves" in why_not_one_matrix(config)
    with pytest.raises(ConfigError, match="mixing=own reads the keys, which are x here"):
        fold_norms(small_gpt(bias=False, score="merged", mixing="own"))


def test_a_model_with_such_a_mixing_shows_its_activations_and_keeps_its_norm(own):
    def both(a, s, q, k, kept):
        return shares(a, s, q, k) * kept.swapaxes(2, 3)

    own("mixing", both, reads_keys=True, remembers=powers)
    model, tokens = small_gpt(mixing="own", n_layers=2), mx.arange(5)[None]
    logits, _ = run_with_cache(model, tokens)
    assert mx.allclose(logits, model(tokens), atol=1e-5)
    with pytest.raises(ConfigError, match="mixing=own uses x itself"):
        fold_norms(model)


def test_layers_that_share_keys_have_a_user_s_hooks_too(own):
    own("logits", lambda a, s: 2 * s)
    logits = small_gpt(logits="own", kv_sharing=2, n_layers=2)(mx.arange(5)[None])
    assert logits.shape == (1, 5, 20)
