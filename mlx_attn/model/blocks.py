"""The transformer block: attention and feed-forward, each behind a norm and beside a shortcut."""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from jaxtyping import Float

from mlx_attn.attention import Attention, AttentionCache
from mlx_attn.exponentials import gelu
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.norms import LayerNorm, RMSNorm


class SquaredReLU(nn.Module):
    """max(0, x)^2 (Primer, arXiv:2109.08668)."""

    def __call__(self, x: mx.array) -> mx.array:
        """The activation of each element."""
        squared_relu: Any = _squared_relu
        return squared_relu(x)


@mx.custom_function
def _squared_relu(x: mx.array) -> mx.array:
    return mx.square(mx.maximum(x, 0))


@_squared_relu.vjp
def _squared_relu_vjp(x: mx.array, cotangent: mx.array, y: mx.array) -> mx.array:
    # Half the operations of the two derivatives in a row.
    return cotangent * (2 * mx.maximum(x, 0))


class GELU(nn.Module):
    """x times the normal distribution function of x, in the tanh form (arXiv:1606.08415)."""

    def __call__(self, x: mx.array) -> mx.array:
        """The activation of each element."""
        return gelu(x)


ACTIVATION_LAYERS = {"gelu": GELU, "relu2": SquaredReLU}


def norm_layer(config: GPTConfig) -> nn.Module:
    """The configuration's normalisation of the residual stream."""
    if config.norm == "rmsnorm":
        return RMSNorm(config.emb_dim, eps=1e-6)
    return LayerNorm(config.emb_dim, eps=1e-5, bias=config.bias)


class FeedForward(nn.Module):
    """activation(x W_1) W_2, on every token alone (the book's section 4.3)."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.layers = [
            nn.Linear(config.emb_dim, config.hidden_dim, bias=config.bias),
            ACTIVATION_LAYERS[config.activation](),
            nn.Linear(config.hidden_dim, config.emb_dim, bias=config.bias),
        ]

    def __call__(self, x: Float[mx.array, "B T C"]) -> Float[mx.array, "B T C"]:
        """The layer's output."""
        for layer in self.layers:
            x = layer(x)
        return x


class TransformerBlock(nn.Module):
    """x + att(norm1 x), then x + ff(norm2 x) (the book's section 4.5)."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.att = Attention(config.attention())
        self.ff = FeedForward(config)
        self.norm1 = norm_layer(config)
        self.norm2 = norm_layer(config)
        self.drop_shortcut = nn.Dropout(config.drop_rate)

    def __call__(
        self, x: Float[mx.array, "B T C"], cache: AttentionCache | None = None
    ) -> Float[mx.array, "B T C"]:
        """The residual stream after this block."""
        x = x + self.drop_shortcut(self.att(self.norm1(x), cache))
        return x + self.drop_shortcut(self.ff(self.norm2(x)))
