"""The standard forward pass, which is short enough to be read, is the general one bit for bit."""

from itertools import product
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mlx_attn.attention.attention import Attention, StandardAttention, attention_layer
from mlx_attn.attention.cache import KVCache
from mlx_attn.attention.catalog import MAPS, VARIANTS
from mlx_attn.attention.config import AttentionConfig
from tests.attention.conftest import SIZES, text

T = 12
POSITIONS: list[dict[str, Any]] = [
    {"position": "learned"},
    {"position": "rope", "qk_norm": True},
    {"position": "alibi"},
    {"position": "rope", "window": 3},
]
WIDTHS: list[dict[str, Any]] = [{}, {"n_kv_heads": 2, "value_dim": 6, "qkv_bias": True}]


@pytest.fixture(params=[p | w for p, w in product(POSITIONS, WIDTHS)], ids=str)
def layer(request) -> Attention:
    return attention_layer(AttentionConfig(**SIZES, **request.param))


def test_layers_of_the_standard_maps_and_no_others_run_it():
    runs = {
        name: attention_layer(AttentionConfig(**{**SIZES, **row.maps}))
        for name, row in VARIANTS.items()
    }
    short = {name for name, layer in runs.items() if isinstance(layer, StandardAttention)}
    assert short == {name for name, row in VARIANTS.items() if row.maps == MAPS}


def test_its_gradients_are_those_of_the_general_pass(layer):
    def gradients(forward) -> dict[str, mx.array]:
        def loss(parameters: dict) -> mx.array:
            layer.update(parameters)
            return mx.square(forward(layer, text())).sum()

        return dict(tree_flatten(mx.grad(loss)(layer.parameters())))

    ours, theirs = gradients(StandardAttention.__call__), gradients(Attention.__call__)
    assert all(mx.array_equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("pieces", [[1] * T, [8, 1, 3]], ids=str)
def test_with_a_cache_it_decodes_what_the_general_pass_decodes(layer, pieces):
    caches = [KVCache(T, layer.config.window) for _ in range(2)]
    for x in mx.split(text(), np.cumsum(pieces)[:-1].tolist(), axis=1):
        ours = StandardAttention.__call__(layer, x, caches[0])
        assert mx.array_equal(ours, Attention.__call__(layer, x, caches[1]))
