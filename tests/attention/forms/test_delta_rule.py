"""Forms that read queries and keys, and convolved ones: decoding, states, and refusals.

Their outputs and gradients are compared with a reference in test_recent.py.
"""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mlx_attn.attention.attention import Attention
from mlx_attn.attention.cache import KVCache
from mlx_attn.attention.catalog import CHOICES
from mlx_attn.attention.forms.delta_rule import unit_lower_inverse
from mlx_attn.errors import ConfigError
from tests.attention.conftest import decoded, layer_of, text

C, T, H = 16, 12, 4
RULES = tuple(name for name, row in CHOICES["mixing"].items() if row.recurs)
SETTINGS: list[dict[str, Any]] = [{"n_kv_heads": 1}, {"score": "merged"}, {"position": "rope"}]


def layer(**settings: Any) -> Attention:
    return layer_of(**{"position": "none", **settings})


@pytest.mark.parametrize(
    "settings",
    [
        *({"mixing": mixing, **more} for mixing in (*RULES, "linear", "path") for more in SETTINGS),
        *({"mixing": "selective", **more} for more in SETTINGS[:2]),
        {"mixing": "selective", "position": "alibi", "window": 4},
        # Reflections before the window reach no query.
        {"mixing": "path", "window": 4, "logits": "forget"},
        {"short_conv": "linear", "n_kv_heads": 1},
        {"short_conv": "silu", "position": "rope", "qk_norm": True},
        {"short_conv": "silu", "window": 3, "position": "alibi"},
        {"short_conv": "silu", "mixing": "gated_delta"},
        {"short_conv": "silu", "value": "residual", "logits": "forget"},
        {"short_conv": "silu", "output": "differential", "score": "paired"},
    ],
    ids=str,
)
def test_decoding_is_the_full_pass(settings):
    module, x = layer(**settings), text()
    for pieces in ([1] * T, [5, 1, 6]):
        np.testing.assert_allclose(decoded(module, x, pieces), module(x), atol=3e-5)


def test_a_state_does_not_grow_with_the_text():
    """Each head keeps a matrix of 4 x 4."""
    module, cache = layer(mixing="gated_delta"), KVCache(T, caches_tokens=False)
    module(text(), cache)
    assert [buffer.shape for buffer in cache.buffers] == [(2, H, 4, 4)]
    with pytest.raises(ConfigError, match="13 tokens are more than the cache has room for"):
        module(mx.zeros((2, 1, C)), cache)


@pytest.mark.parametrize("size", [1, 2, 3, 8, 13, 64])
def test_the_inverse_by_halves_is_exact_for_equal_keys(size):
    """The hardest case: every element below the diagonal is 1, and powers of L grow to 10^17."""
    L = np.tril(np.ones((2, 3, size, size)), -1)
    inverse = np.array(unit_lower_inverse(mx.array(L, mx.float32)))
    np.testing.assert_allclose(inverse, np.linalg.inv(np.eye(size) + L), atol=1e-6)


def test_heads_of_a_gated_rule_start_by_forgetting_1_to_15_percent():
    start = Attention(layer(mixing="gated_delta").config)
    rates = mx.exp(start["log_rate"]) * nn.softplus(start["decay_bias"])
    assert np.allclose(1 - mx.exp(-rates), 1 - np.exp([-0.01, -0.06, -0.11, -0.16]), atol=1e-6)
