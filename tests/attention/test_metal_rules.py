"""Metal's limits, held to on any machine."""

from typing import Any

import mlx.core as mx
import pytest

from mlx_attn.attention.attention import Attention, explicit_attention
from mlx_attn.attention.cache import Places
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


def test_heads_of_64_take_the_fused_path_with_the_causal_mask_by_name(fused_calls):
    layer()(mx.ones((1, 16, 128)))
    assert fused_calls == [((1, 2, 16, 64), (1, 2, 16, 64), True)]


def test_fewer_than_nine_queries_in_training_avoid_the_kernel_without_a_gradient(fused_calls):
    layer()(mx.ones((1, 8, 128)))
    assert fused_calls == []


def test_fewer_than_nine_queries_decode_on_the_fused_path(fused_calls):
    module = layer()
    module.eval()
    module(mx.ones((1, 8, 128)))
    assert len(fused_calls) == 1


def test_dropout_takes_the_explicit_path(fused_calls):
    layer(drop_rate=0.1)(mx.ones((1, 16, 128)))
    assert fused_calls == []


def test_merged_attention_of_a_fused_width_is_one_multi_query_call(fused_calls):
    layer(score="merged")(mx.ones((1, 16, 128)))
    assert fused_calls == [((1, 2, 16, 128), (1, 1, 16, 128), True)]


@pytest.mark.parametrize("key_heads", [1, 2, 4])
@pytest.mark.parametrize("alibi", [False, True])
def test_both_paths_give_the_same_numbers(key_heads, alibi):
    module = layer(position="alibi" if alibi else "none", n_heads=4)
    q = mx.random.normal((2, 4, 16, 32))
    k, v = mx.random.normal((2, 2, key_heads, 16, 32))
    fused = fused_attention(q, k, v, module.config.scale, module.bias(Places.of_text(16)))
    explicit = explicit_attention(module, q, k, v, Places.of_text(16))
    assert mx.allclose(fused, explicit, atol=1e-5)


@pytest.mark.parametrize(
    ("width", "T_q", "heads_per_key", "fused"),
    [(64, 9, 1, True), (32, 64, 1, False), (72, 8, 1, False), (128, 1, 8, True), (64, 8, 8, False)],
)
def test_the_table_of_fused_shapes(width, T_q, heads_per_key, fused):
    assert attention_kernels.has_fused_kernel(width, T_q, heads_per_key) == fused
