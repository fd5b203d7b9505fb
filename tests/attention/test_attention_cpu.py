"""Attention with a gradient of its own gives what the textbook's chain of derivatives gives."""

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_attn.attention.attention import causal_mask
from mlx_attn.attention.layer import attention_scores, weighted_sum
from mlx_attn.machine.attention_kernels import attention_cpu
from mlx_attn.machine.exponentials import softmax

SCALE = 0.3
HEADS = st.sampled_from([(4, 4), (2, 2), (1, 4), (4, 1), (1, 1)])


def explicit(q, k, v, mask, scale):
    return weighted_sum(softmax(attention_scores(q, k, scale) + mask).astype(q.dtype), v)


def heads(shared: tuple[int, int], T_q: int, T_k: int, seed: int, dtype=mx.float32):
    """Queries, keys and values, not contiguous, as they come from the layers."""
    key_heads, value_heads = shared
    keys = mx.random.split(mx.random.key(seed), 3)
    shapes = ((2, T_q, 4, 6), (2, T_k, key_heads, 6), (2, T_k, value_heads, 5))
    drawn = (mx.random.normal(s, key=key) for s, key in zip(shapes, keys, strict=True))
    return [array.astype(dtype).transpose(0, 2, 1, 3) for array in drawn]


def value_and_gradients(attend: Callable, inputs: list[mx.array], mask: mx.array):
    y = attend(*inputs, mask, SCALE)
    weight = mx.cos(mx.arange(y.size)).reshape(y.shape).astype(y.dtype)

    def loss(q, k, v):
        return (attend(q, k, v, mask, SCALE) * weight).sum()

    return [y, *mx.grad(loss, argnums=(0, 1, 2))(*inputs)]


@settings(max_examples=25)
@given(HEADS, st.integers(1, 140), st.integers(0, 3), st.integers(0, 99))
def test_value_and_gradients_are_the_textbook_s(shared, T_q, remembered, seed):
    mask = causal_mask(mx.arange(remembered, T_q + remembered), mx.arange(T_q + remembered))
    inputs = heads(shared, T_q, T_q + remembered, seed)
    results = (value_and_gradients(attend, inputs, mask) for attend in (attention_cpu, explicit))
    for ours, textbook in zip(*results, strict=True):
        assert ours.shape == textbook.shape
        assert np.allclose(np.array(ours), np.array(textbook), atol=2e-5)


def test_float64_keeps_its_digits():
    mask = causal_mask(mx.arange(9), mx.arange(9)).astype(mx.float64)
    with mx.stream(mx.cpu):
        inputs = heads((2, 2), 9, 9, 0, mx.float64)
        results = [
            value_and_gradients(attend, inputs, mask) for attend in (attention_cpu, explicit)
        ]
    for ours, textbook in zip(*results, strict=True):
        assert ours.dtype == mx.float64
        assert np.allclose(np.array(ours), np.array(textbook), atol=1e-13)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_half_precision_stays_half_precision(dtype):
    inputs = heads((4, 4), 9, 9, 0, dtype)
    results = value_and_gradients(attention_cpu, inputs, causal_mask(mx.arange(9), mx.arange(9)))
    assert {result.dtype for result in results} == {dtype}


def test_scores_too_large_for_an_exponential_are_weighed():
    q, k, v = heads((4, 4), 9, 9, 0)
    y = attention_cpu(1e3 * q, 1e3 * k, v, causal_mask(mx.arange(9), mx.arange(9)), SCALE)
    assert bool(mx.isfinite(y).all())
