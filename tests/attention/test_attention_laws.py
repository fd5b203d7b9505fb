"""Properties of every form of the book's attention, for any weights.

Causality and decoding are laws, which test_laws.py tries.
"""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from scipy.linalg import block_diag

from mlx_attn.arrays import named_arrays
from mlx_attn.attention.attention import Attention
from mlx_attn.attention.cache import KVCache
from mlx_attn.attention.catalog import VARIANTS
from mlx_attn.errors import ConfigError
from tests.attention.conftest import decoded, layer_of, text

T = 12
FORMS = [name for name, variant in VARIANTS.items() if variant.group == "forms"]


def layer(variant: str = "standard", **choices: Any) -> Attention:
    return layer_of(**{"qkv_bias": True, **VARIANTS[variant].maps, **choices})


def difference(a: mx.array, b: mx.array) -> float:
    return float(np.abs(np.array(a) - np.array(b)).max())


@pytest.mark.parametrize("window", [0, 5])
def test_room_can_be_made_when_it_is_needed(window):
    module, cache, x = layer(window=window), KVCache(4, window), text()
    read = decoded(module, x, [4], cache)
    with pytest.raises(ConfigError, match=r"5 tokens are more .* room for .4"):
        module(x[:, 4:5], cache)
    cache.reserve(T)
    parts = [read, *(module(x[:, i : i + 1], cache) for i in range(4, T))]
    assert difference(mx.concatenate(parts, axis=1), module(x)) < 3e-5


@pytest.mark.parametrize("n_kv_heads", [4, 2])
def test_sliced_heads_are_separate_heads_with_block_diagonal_matrices(n_kv_heads):
    sliced = layer("sliced-heads", n_kv_heads=n_kv_heads)
    separate = layer("standard", n_kv_heads=n_kv_heads)
    separate.update({"out_proj": sliced.out_proj})
    for name, heads in (("W_query", 4), ("W_key", n_kv_heads), ("W_value", n_kv_heads)):
        blocks = np.split(np.array(sliced[name].weight), heads)
        whole = mx.array(np.array(block_diag(*blocks)))
        separate[name].update({"weight": whole, "bias": sliced[name].bias})
    assert difference(sliced(text()), separate(text())) < 1e-4


@pytest.mark.parametrize("position", ["alibi", "rope"])
@pytest.mark.parametrize("variant", FORMS)
def test_relative_positions_do_not_depend_on_where_a_text_begins(variant, position):
    """Scores depend only on distances: a text that begins later has the same weights."""
    module, x = layer(variant, position=position, qkv_bias=False), text(batch=1)
    later = module.weights(mx.concatenate([mx.zeros((1, 3, 16)), x], axis=1))
    seen = later[:, :, 3:, 3:]
    assert difference(seen / seen.sum(axis=-1, keepdims=True), module.weights(x)) < 1e-4


@pytest.mark.parametrize("size", [0.0, 20.0, 2e4])
@pytest.mark.parametrize("variant", VARIANTS)
def test_outputs_and_gradients_are_finite_for_zeros_and_for_large_numbers(variant, size):
    module = layer(variant, qkv_bias=False)
    outputs = nn.value_and_grad(module, lambda: module(size * text(), None, {}).sum())()
    assert all(mx.isfinite(array).all() for array in named_arrays(list(outputs)).values())


def test_attention_dropout_keeps_the_mean_and_only_acts_in_training():
    module, x = layer(drop_rate=0.5, qkv_bias=False), text()
    assert mx.array_equal(module(x), module(x))
    module.train()
    assert difference(module(x), module(x)) > 1e-4
    mx.random.seed(0)
    mean = module(mx.tile(x, (400, 1, 1))).reshape(400, *x.shape).mean(axis=0)
    module.eval()
    error, size = (float(np.abs(np.array(y)).mean()) for y in (mean - module(x), module(x)))
    assert error < 0.15 * size + 0.02
