"""The gradient of a table of tokens on a GPU's path: no scatter adds, so bits repeat."""

from dataclasses import replace

import mlx.core as mx
import pytest

from mlx_attn.attention.catalog import VARIANTS
from mlx_attn.bench.speed import WORKLOADS, exported, variant_setups
from mlx_attn.machine.device import forced_path
from mlx_attn.machine.layers import MOST_ROWS, TokenTable

ONE_NUMBER_EACH = {"value-residual": 4}
"""Scatters by variant: the gradients of two gains per layer, read from a vector one by one.

Each adds one number to one place, so there is no order that could change the bits.
"""


def table(rows: int = 65) -> tuple[TokenTable, mx.array]:
    mx.random.seed(0)
    return TokenTable(rows, 8), mx.random.randint(0, rows, (4, 7))


def gradient(layer: TokenTable, tokens: mx.array) -> mx.array:
    def loss(weight: mx.array) -> mx.array:
        layer.weight = weight
        return (layer(tokens) ** 3).sum()

    return mx.grad(loss)(layer.weight)


def scattered_sums(*arrays: mx.array) -> int:
    return exported(*arrays).count("Scatter Sum")


def test_gradient_on_the_path_of_a_gpu_equals_the_lookups_own():
    expected = gradient(*table())
    with forced_path("gpu"):
        assert mx.allclose(gradient(*table()), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("rows", "sums"), [(MOST_ROWS, 0), (MOST_ROWS + 1, 1)])
def test_only_a_table_above_the_limit_scatters(gpu_path, rows, sums):
    assert scattered_sums(gradient(*table(rows))) == sums


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_no_scatter_adds_gradients_of_tokens_in_the_training_graph(gpu_path, variant):
    sizes = {"n_layers": 2, "vocab_size": 65, "drop_rate": 0.1}
    config, training = variant_setups("nano", sizes, variant)[variant]
    step = WORKLOADS["train"](config, replace(training, accumulate=1)).graph()
    assert scattered_sums(*step) == ONE_NUMBER_EACH.get(variant, 0)
