"""The two exact forms of merged attention, and the rule that chooses."""

from typing import Any

import mlx.core as mx
import pytest

from mlx_attn.arrays import named_arrays
from mlx_attn.attention.attention import Attention
from mlx_attn.attention.config import AttentionConfig
from mlx_attn.attention.forms import compact_caches
from mlx_attn.attention.forms.compact_caches import project_values_first
from mlx_attn.machine.device import forced_path
from tests.attention.conftest import SIZES, text

T = 12


def layer(**choices: Any) -> Attention:
    return Attention(AttentionConfig(**{**SIZES, "score": "merged", **choices}))


def result(module: Attention, first: bool, monkeypatch) -> tuple[mx.array, dict[str, mx.array]]:
    monkeypatch.setattr(compact_caches, "project_values_first", lambda *_: first)

    def loss(parameters: dict) -> mx.array:
        module.update(parameters)
        return mx.square(module(text())).sum()

    return module(text()), named_arrays(mx.grad(loss)(module.parameters()))


@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"qkv_bias": True},
        {"n_kv_heads": 2, "qkv_bias": True},
        {"n_kv_heads": 1},
        {"value": "identity"},
        {"output": "none"},
        {"output": "merged"},
        {"position": "alibi"},
        {"position": "rope", "qk_norm": True},
    ],
    ids=str,
)
def test_both_forms_give_the_same_output_and_gradients(choices, monkeypatch):
    module = layer(**choices)
    output, gradients = result(module, True, monkeypatch)
    other_output, other_gradients = result(module, False, monkeypatch)
    assert mx.allclose(output, other_output, atol=1e-5)
    for name, gradient in gradients.items():
        assert mx.allclose(gradient, other_gradients[name], rtol=1e-4, atol=1e-4), name


def test_decoding_one_token_on_a_processor_computes_no_value_of_an_old_token():
    with forced_path("mac-cpu"):
        assert project_values_first(layer(), T_q=T, T_k=T)
        assert not project_values_first(layer(), T_q=1, T_k=T)
        # Dropped weights do not add up to 1.
        assert project_values_first(layer(drop_rate=0.5), T_q=1, T_k=T)


@pytest.mark.parametrize(("width", "first"), [(48, True), (64, False), (128, False), (130, True)])
def test_on_a_gpu_a_fused_kernel_for_the_width_decides(gpu_path, width, first):
    module = layer(d_in=width, d_out=width, n_heads=2)
    assert project_values_first(module, T_q=64, T_k=64) == first
