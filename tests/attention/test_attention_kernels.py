"""Attention's kernels: a processor's, with a gradient of its own, and Metal's limits."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlx_attn.attention.attention import Attention, causal_mask
from mlx_attn.attention.config import AttentionConfig
from mlx_attn.attention.layer import attention_scores, weighted_sum
from mlx_attn.machine import operations
from mlx_attn.machine.operations import attention_cpu, fused_attention, softmax

SCALE = 0.3


def explicit(q, k, v, mask, scale):
    return weighted_sum(softmax(attention_scores(q, k, scale) + mask).astype(q.dtype), v)


def heads(shared: tuple[int, int], T_q: int, T_k: int, dtype: mx.Dtype) -> list[mx.array]:
    """Queries, keys and values, not contiguous, as they come from the layers."""
    key_heads, value_heads = shared
    keys = mx.random.split(mx.random.key(0), 3)
    shapes = ((2, T_q, 4, 6), (2, T_k, key_heads, 6), (2, T_k, value_heads, 5))
    drawn = (mx.random.normal(s, key=key) for s, key in zip(shapes, keys, strict=True))
    return [array.astype(dtype).transpose(0, 2, 1, 3) for array in drawn]


def value_and_gradients(attend: Callable, inputs: list[mx.array], mask: mx.array):
    y = attend(*inputs, mask, SCALE)
    weight = mx.cos(mx.arange(y.size)).reshape(y.shape).astype(y.dtype)

    def loss(q, k, v):
        return (attend(q, k, v, mask, SCALE) * weight).sum()

    return [y, *mx.grad(loss, argnums=(0, 1, 2))(*inputs)]


@pytest.mark.parametrize("shared", [(4, 4), (2, 2), (1, 4), (4, 1), (1, 1)])
@pytest.mark.parametrize(("T_q", "remembered"), [(1, 0), (1, 3), (9, 0), (140, 2)])
def test_value_and_gradients_are_the_textbook_s_in_float64(shared, T_q, remembered):
    T_k = T_q + remembered
    with mx.stream(mx.cpu):
        mask = causal_mask(mx.arange(remembered, T_k), mx.arange(T_k)).astype(mx.float64)
        inputs = heads(shared, T_q, T_k, mx.float64)
        results = [
            value_and_gradients(attend, inputs, mask) for attend in (attention_cpu, explicit)
        ]
    for ours, textbook in zip(*results, strict=True):
        assert ours.dtype == mx.float64
        assert np.allclose(np.array(ours), np.array(textbook), atol=1e-12)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32])
def test_a_type_stays_and_scores_too_large_for_an_exponential_are_weighed(dtype, on_processor):
    q, k, v = heads((4, 4), 9, 9, dtype)
    results = value_and_gradients(
        attention_cpu, [100 * q, 100 * k, v], causal_mask(mx.arange(9), mx.arange(9))
    )
    assert {result.dtype for result in results} == {dtype}
    assert mx.isfinite(results[0]).all()


# Metal.


@pytest.fixture
def fused_calls(gpu_path, monkeypatch) -> list[tuple]:
    """Shapes of the queries that reach MLX's fused operation, as on a Mac."""
    calls = []

    def record(q, k, v, scale, bias=None):
        calls.append((q.shape, k.shape, bias is None))
        return fused_attention(q, k, v, scale, bias)

    monkeypatch.setattr(operations, "fused_attention", record)
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
    assert operations.has_fused_kernel(width, T_q, heads_per_key) == fused
