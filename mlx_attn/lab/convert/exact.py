"""A model evaluated in float64: its logits without the rounding of float32.

It runs on the CPU stream, for Metal has no float64. Where an operation of MLX rounds float64 to
float32 (its norms, its fused attention) the same formula is written out.
"""

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from jaxtyping import Float, Float64, Integer

from mlx_attn.attention import AttentionCache
from mlx_attn.model import GPT, GPTConfig
from mlx_attn.model.blocks import TransformerBlock


def exact_logits(model: GPT, tokens: Integer[mx.array, "B T"]) -> Float64[np.ndarray, "B T V"]:
    """The logits of a model's weights as they are, computed in float64 and without dropout.

    The angles of RoPE and the slopes of ALiBi stay those of float32: they belong to the model.
    """
    with mx.stream(mx.cpu):
        return np.array(_in_float64(model)(tokens))


def _in_float64(model: GPT) -> GPT:
    exact = GPT(model.config)
    exact.update(model.parameters())
    exact.final_norm = _PlainNorm(model.final_norm)
    exact.trf_blocks = []
    exact.set_dtype(mx.float64)
    exact.eval()
    blocks: Any = [_ExactBlock(block, model.config) for block in model.trf_blocks]
    exact.trf_blocks = blocks
    return exact


@dataclass(frozen=True, slots=True)
class _ExactBlock:
    """A block whose weights are in float64 only while it computes: large models have many."""

    block: TransformerBlock
    config: GPTConfig

    def __call__(
        self, x: Float[mx.array, "B T C"], cache: AttentionCache | None = None
    ) -> Float[mx.array, "B T C"]:
        exact = TransformerBlock(self.config)
        exact.update(self.block.parameters())
        exact.norm1, exact.norm2 = _PlainNorm(self.block.norm1), _PlainNorm(self.block.norm2)
        exact.att.fused = False
        if self.config.qk_norm:
            exact.att.normalise = _unit_rms
        exact.set_dtype(mx.float64)
        exact.eval()
        y = exact(x, cache)
        mx.eval(y)
        return y


class _PlainNorm(nn.Module):
    """LayerNorm or RMSNorm in plain operations, with the weights of an existing one."""

    def __init__(self, norm: Any):
        super().__init__()
        self.weight, self.eps = norm["weight"], norm.eps
        self.bias = norm["bias"] if "bias" in norm else mx.zeros_like(self.weight)
        self.centred = isinstance(norm, nn.LayerNorm)

    def __call__(self, x: Float[mx.array, "*batch C"]) -> Float[mx.array, "*batch C"]:
        x = x - x.mean(-1, keepdims=True) if self.centred else x
        return _unit_rms(x, self.eps) * self.weight + self.bias


def _unit_rms(x: Float[mx.array, "*batch C"], eps: float = 1e-6) -> Float[mx.array, "*batch C"]:
    return x / mx.sqrt(mx.square(x).mean(-1, keepdims=True) + eps)
