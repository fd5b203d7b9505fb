"""Attention's kernels: a processor's, with a gradient of its own, and Metal's limits."""

from typing import Any

import mlx.core as mx
import pytest

from mlx_attn.attention.attention import Attention, causal_mask
from mlx_attn.attention.cache import Positions
from mlx_attn.attention.config import AttentionConfig
from mlx_attn.machine import operations
from mlx_attn.machine.operations import attention_cpu, fused_attention
from tests.attention.conftest import layer_of, text


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32])
def test_a_type_stays_and_scores_too_large_for_an_exponential_are_weighed(dtype, on_processor):
    """Its numbers and gradients are checked by `verify`."""
    keys, mask = mx.random.split(mx.random.key(0), 3), causal_mask(Positions.of_text(9))
    q, k, v = (mx.random.normal((2, 4, 9, 6), dtype, key=key) for key in keys)

    def total(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        return attention_cpu(q, k, v, mask, 0.3).sum()

    y, gradients = mx.value_and_grad(total, argnums=(0, 1, 2))(100 * q, 100 * k, v)
    assert {array.dtype for array in (y, *gradients)} == {dtype}
    assert mx.isfinite(y)


@pytest.mark.parametrize("choice", [{"logits": "forget"}, {"mixing": "path"}], ids=str)
def test_bfloat16_keeps_its_digits_to_the_end_of_a_long_text(choice):
    module, x = layer_of(**choice), text(T=512)
    expected = module(x)[:, -64:]
    module.set_dtype(mx.bfloat16)
    error = module(x.astype(mx.bfloat16))[:, -64:] - expected
    assert mx.square(error).sum() < 0.01**2 * mx.square(expected).sum()


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


@pytest.mark.parametrize(
    ("choices", "T", "trains", "calls"),
    [
        ({}, 16, True, [((1, 2, 16, 64), (1, 2, 16, 64), True)]),  # with the causal mask by name
        ({"score": "merged"}, 16, True, [((1, 2, 16, 128), (1, 1, 16, 128), True)]),
        ({"output": "merged"}, 16, True, []),  # more heads of keys than of values
        ({"drop_rate": 0.1}, 16, True, []),
        ({}, 8, True, []),  # fewer than nine queries have a kernel without a gradient
        ({}, 8, False, [((1, 2, 8, 64), (1, 2, 8, 64), True)]),
    ],
)
def test_the_fused_path_is_taken_if_it_has_a_gradient_or_needs_none(
    fused_calls, choices, T, trains, calls
):
    sizes: dict[str, Any] = {"d_in": 128, "d_out": 128, "context_length": 16, "n_heads": 2}
    Attention(AttentionConfig(**sizes, **choices)).train(trains)(mx.ones((1, T, 128)))
    assert fused_calls == calls


@pytest.mark.parametrize("T", [1, 2, 3])
def test_without_a_mask_of_its_own_the_fused_path_is_causal(T):
    y = mx.random.normal((1, 2, T, 64), key=mx.random.key(T))
    expected = fused_attention(y, y, y, 0.1, causal_mask(Positions.of_text(T)))
    assert mx.allclose(fused_attention(y, y, y, 0.1, None), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("width", "T_q", "heads_per_key", "fused"),
    [(64, 9, 1, True), (32, 64, 1, False), (72, 8, 1, False), (128, 1, 8, True), (64, 8, 8, False)],
)
def test_the_table_of_fused_shapes(width, T_q, heads_per_key, fused):
    assert operations.has_fused_kernel(width, T_q, heads_per_key) == fused
