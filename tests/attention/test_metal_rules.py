"""Metal's limits, held to on any machine."""

from typing import Any

import mlx.core as mx
import pytest

from mlx_attn.attention.attention import Attention
from mlx_attn.attention.config import AttentionConfig
from mlx_attn.machine import attention_kernels
from mlx_attn.machine.attention_kernels import fused_attention


@pytest.fixture
def fused_calls(gpu_path, monkeypatch) -> list[tuple]:
    """Shapes of the queries that reach MLX's fused operation, as on a Mac."""
    calls = []

    def record(q, k, v, scale, bias=None):
        calls.append((q.shape, k.shape, bias is None))
        return fused_attention(q, k, v, scale, bias)

    monkeypatch.setattr(attention_kernels, "fused_attention", record)
    return calls


def layer(**choices: Any) -> Attention:
    defaults: dict[str, Any] = {"d_in": 128, "d_out": 128, "context_length": 16, "n_heads": 2}
    return Attention(AttentionConfig(**(defaults | choices)))


@pytest.mark.parametrize(
    ("choices", "T", "calls"),
    [
        ({}, 16, [((1, 2, 16, 64), (1, 2, 16, 64), True)]),  # with the causal mask by name
        ({"score": "merged"}, 16, [((1, 2, 16, 128), (1, 1, 16, 128), True)]),
        ({"drop_rate": 0.1}, 16, []),
        ({}, 8, []),  # fewer than nine queries have a kernel without a gradient
    ],
)
def test_training_takes_the_fused_path_if_it_has_a_gradient(fused_calls, choices, T, calls):
    layer(**choices)(mx.ones((1, T, 128)))
    assert fused_calls == calls


def test_fewer_than_nine_queries_decode_on_the_fused_path(fused_calls):
    module = layer()
    module.eval()
    module(mx.ones((1, 8, 128)))
    assert len(fused_calls) == 1


@pytest.mark.parametrize(
    ("width", "T_q", "heads_per_key", "fused"),
    [(64, 9, 1, True), (32, 64, 1, False), (72, 8, 1, False), (128, 1, 8, True), (64, 8, 8, False)],
)
def test_the_table_of_fused_shapes(width, T_q, heads_per_key, fused):
    assert attention_kernels.has_fused_kernel(width, T_q, heads_per_key) == fused
