"""The two norms of the residual stream, quick for the single tokens of decoding too.

MLX's own on a processor is a dozen operations, whose starting takes longer than computing a few
numbers does. For a few, outside of training, the norm is compiled into four; MLX keeps what its C++
compiler makes, so that this is done once for each width.
"""

from collections.abc import Callable
from functools import cache, partial

import mlx.core as mx
import mlx.nn as nn
from jaxtyping import Float

from mlx_attn.exponentials import is_compiled

Stream = Float[mx.array, "*batch C"]


class LayerNorm(nn.LayerNorm):
    """(x - mean x) / sqrt(var x + eps) * weight + bias (arXiv:1607.06450)."""

    def __call__(self, x: Stream) -> Stream:
        """The norm of each token."""
        if self.training or "bias" not in self or not is_compiled(x):
            return super().__call__(x)
        return _layer_norm(x.shape[-1], self.eps)(x, self.weight, self.bias)


class RMSNorm(nn.RMSNorm):
    """x / sqrt(mean x^2 + eps) * weight (arXiv:1910.07467)."""

    def __call__(self, x: Stream) -> Stream:
        """The norm of each token."""
        if self.training or not is_compiled(x):
            return super().__call__(x)
        return _rms_norm(x.shape[-1], self.eps)(x, self.weight)


@cache
def _layer_norm(width: int, eps: float) -> Callable[..., mx.array]:
    @partial(mx.compile, shapeless=True)
    def norm(x: mx.array, weight: mx.array, bias: mx.array) -> mx.array:
        centred = x - x.sum(axis=-1, keepdims=True) * (1 / width)
        return centred * _inverse_rms(centred, width, eps) * weight + bias

    return norm


@cache
def _rms_norm(width: int, eps: float) -> Callable[..., mx.array]:
    @partial(mx.compile, shapeless=True)
    def norm(x: mx.array, weight: mx.array) -> mx.array:
        return x * _inverse_rms(x, width, eps) * weight

    return norm


def _inverse_rms(x: mx.array, width: int, eps: float) -> mx.array:
    return mx.rsqrt(x.square().sum(axis=-1, keepdims=True) * (1 / width) + eps)
