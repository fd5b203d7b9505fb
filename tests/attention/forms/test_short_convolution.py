"""Short convolutions: the rows that decoding keeps, costs, and refusals."""

import numpy as np
import pytest

from mlx_attn.arrays import named_arrays
from mlx_attn.attention.attention import Attention
from mlx_attn.attention.cache import KVCache
from mlx_attn.attention.config import AttentionConfig
from mlx_attn.convert.circuits import NoMatrix, qk_circuit
from mlx_attn.cost import model_cost
from mlx_attn.model.config import config_from
from tests.attention.conftest import SIZES, layer_of, text

C, T, H = 16, 12, 4


def test_a_convolution_caches_three_rows_of_each_part_and_counts_its_weights():
    module, cache = layer_of(short_conv="silu", n_kv_heads=1, position="none"), KVCache(T)
    module(text(), cache)
    assert [rows.shape for rows in cache.rows] == [(2, H, 3, 4), (2, 1, 3, 4), (2, 1, 3, 4)]
    assert sum(array.shape[3] for array in cache.buffers) == 2 * 4
    sizes = {"vocab_size": 9, "emb_dim": C, "n_heads": H, "n_layers": 1}
    plain, convolving = (
        model_cost(config_from({**sizes, "short_conv": k})) for k in ("none", "silu")
    )
    assert convolving.parameters - plain.parameters == 4 * 3 * C
    assert convolving.multiply_adds - plain.multiply_adds == 4 * 3 * C


def test_a_linear_convolution_starts_as_the_layer_without_it():
    plain = Attention(AttentionConfig(**SIZES))
    convolving = Attention(AttentionConfig(**SIZES, short_conv="linear"))
    convolving.load_weights(list(named_arrays(plain).items()), strict=False)
    np.testing.assert_allclose(convolving(text()), plain(text()), atol=1e-6)


def test_a_convolution_leaves_no_matrix_of_a_head():
    with pytest.raises(NoMatrix, match="short_conv=silu"):
        qk_circuit(layer_of(short_conv="silu"))
