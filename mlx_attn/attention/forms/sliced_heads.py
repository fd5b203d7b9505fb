"""x is cut into heads before the projection, so that a head reads only its own slice.

The matrices are the book's with zeros outside their diagonal blocks: they compute what `separate`
and `linear` compute with the whole matrix, and convert to it exactly.
"""

import mlx.core as mx
import mlx.nn as nn
from jaxtyping import Float

from mlx_attn.attention.catalog import FORMS, choice, row
from mlx_attn.attention.config import AttentionConfig
from mlx_attn.attention.layer import merge_heads, split_heads
from mlx_attn.attention.maps import linear_after, linear_value, separate


class SlicedLinear(nn.Module):
    """y_h = x[slice h] W_h, for each head h: x is cut into heads first, and then projected.

    Args:
        n_heads: Number of heads H, and of slices.
        slice_dim: Width of a slice of x.
        head_dim: Width D of a head.
        bias: Adds a bias.

    Attributes:
        weight: The matrices W_h as (out, in): [H D, slice_dim], head h in rows h D..(h+1) D.
    """

    def __init__(self, n_heads: int, slice_dim: int, head_dim: int, bias: bool):
        super().__init__()
        self.n_heads = n_heads
        self.weight = mx.zeros((n_heads * head_dim, slice_dim))  # drawn by the layer
        if bias:
            self.bias = mx.zeros((n_heads * head_dim,))

    def __call__(self, x: Float[mx.array, "B T C"]) -> Float[mx.array, "B T width"]:
        """Return the heads of x, concatenated."""
        # [B, H, T, slice] x [H, slice, D] -> [B, H, T, D] -> [B, T, H D]
        y = merge_heads(split_heads(x, self.n_heads) @ self._blocks().swapaxes(1, 2))
        return y + self.bias if "bias" in self else y

    def dense_weight(self) -> Float[mx.array, "width C"]:
        """Return the block-diagonal matrix with its zeros, as (out, in)."""
        diagonal = mx.eye(self.n_heads, dtype=self.weight.dtype)[:, None, :, None]
        # [H, 1, H, 1] * [H, D, 1, slice] -> [H, D, H, slice] -> [H D, C]
        return (diagonal * self._blocks()[:, :, None]).reshape(self.weight.shape[0], -1)

    def _blocks(self) -> Float[mx.array, "H D slice_dim"]:
        return self.weight.reshape(self.n_heads, -1, self.weight.shape[1])  # [H, D, slice]


def _sliced(config: AttentionConfig, n_heads: int, width: int) -> SlicedLinear:
    return SlicedLinear(n_heads, config.d_in // n_heads, width, config.qkv_bias)  # [H D, C / H]


def _needs_equal_slices(config: AttentionConfig) -> str:
    if config.d_in % config.n_heads == config.d_in % config.n_kv_heads == 0:
        return ""
    return (
        f"sliced maps cut emb_dim={config.d_in} into n_heads={config.n_heads} and "
        f"n_kv_heads={config.n_kv_heads} equal slices: choose numbers of heads that divide it"
    )


_ASKED = "a question of readers: cut x into heads before the projection, or after it?"


choice(
    "score",
    "sliced",
    "q_h = x[slice h] W_query_h, k_h = x[slice h] W_key_h",
    source=_ASKED,
    weights={
        "W_query": lambda config: _sliced(config, config.n_heads, config.head_dim),
        "W_key": lambda config: _sliced(config, config.n_kv_heads, config.head_dim),
    },
    refuses=_needs_equal_slices,
)(separate)


choice(
    "value",
    "sliced",
    "v_h = x[slice h] W_value_h",
    source=_ASKED,
    weights={"W_value": lambda config: _sliced(config, config.n_kv_heads, config.value_dim)},
    after=linear_after,
    refuses=_needs_equal_slices,
)(linear_value)


row(
    "sliced-heads",
    "heads read only their own slices of x, which is cut before the projections",
    group=FORMS,
    score="sliced",
    value="sliced",
)
