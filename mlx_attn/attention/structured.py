"""Linear maps that store fewer weights than a whole matrix: shrunk ones, and block-diagonal ones.

Both are the book's maps with a constraint on the matrix, so they compute what `separate` and
`linear` compute with the whole matrix, and convert to it exactly.
"""

import mlx.core as mx
import mlx.nn as nn
from jaxtyping import Float

from mlx_attn.attention.config import AttentionConfig
from mlx_attn.attention.layer import (
    W_QUERY,
    choice,
    merge_heads,
    split_heads,
)
from mlx_attn.attention.maps import linear_after, linear_value, separate


class ShrunkLinear(nn.Module):
    """y_h = x[kept_h] + x[rest_h] R_h, for each head h: D coordinates of x pass as they are.

    Where only the product of two maps matters, W_1 W_2 = (W_1 B) (B^-1 W_2) for every invertible B.
    The B that turns D rows of W_2 into the identity leaves D^2 weights fewer to keep and computes
    the same (Wasielewski and Graef, "MatShrink").

    Args:
        C: Width of x.
        n_heads: Number of heads H.
        head_dim: Width D of a head, less than C.
        bias: Whether a bias is added.

    Attributes:
        weight: The matrices R_h as (out, in): [H D, C - D], head h in rows h D..(h+1) D.
        places: Position of coordinate c of x in (kept_h, rest_h): [H, C] integers, not trained.
    """

    def __init__(self, C: int, n_heads: int, head_dim: int, bias: bool):
        super().__init__()
        self.weight = mx.zeros((n_heads * head_dim, C - head_dim))
        # At first head h keeps the coordinates h D..(h+1) D; a conversion writes others.
        self.places = (mx.arange(C)[None] - head_dim * mx.arange(n_heads)[:, None]) % C
        if bias:
            self.bias = mx.zeros((n_heads * head_dim,))
        # Indices: saved with the layer, never trained.
        self.freeze(recurse=False, keys=["places"])

    def __call__(self, x: Float[mx.array, "B T C"]) -> Float[mx.array, "B T width"]:
        """Return the heads of x, side by side."""
        # Training pays for the whole matrix; only the number of trained weights is smaller.
        y = x @ self.dense_weight().T
        return y + self.bias if "bias" in self else y

    def dense_weight(self) -> Float[mx.array, "width C"]:
        """Return the matrix with the identity written out, as (out, in)."""
        # [H, D, C - D]
        n_heads, C = self.places.shape
        rest = self.weight.reshape(n_heads, -1, self.weight.shape[1])
        D = rest.shape[1]
        identity = mx.broadcast_to(mx.eye(D, dtype=rest.dtype), (n_heads, D, D))
        dense = mx.concatenate([identity, rest], axis=2)
        places = mx.broadcast_to(self.places[:, None], dense.shape)
        # [H, D, C] in the order (kept, rest) -> the order of x -> [H D, C]
        return mx.take_along_axis(dense, places, axis=2).reshape(-1, C)


def _needs_a_rest(word: str, width: int, c: AttentionConfig) -> str:
    if width < c.d_in:
        return ""
    return (
        f"{word} passes {width} coordinates of x on as they are, which must be fewer "
        f"than emb_dim={c.d_in}: use more heads"
    )


choice(
    "score",
    "shrunk",
    "q_h = x W_query_h, k_h = x[kept_h] + x[rest_h] R_h",
    same_as="separate",
    source="Wasielewski and Graef, MatShrink",
    weights={
        **W_QUERY,
        "W_key": lambda c: ShrunkLinear(c.d_in, c.n_kv_heads, c.head_dim, c.qkv_bias),
    },
    refuses=lambda c: _needs_a_rest("score=shrunk", c.head_dim, c),
)(separate)


choice(
    "value",
    "shrunk",
    "v_h = x[kept_h] + x[rest_h] R_h",
    same_as="linear",
    source="Wasielewski and Graef, MatShrink",
    weights={"W_value": lambda c: ShrunkLinear(c.d_in, c.n_kv_heads, c.value_dim, c.qkv_bias)},
    after=linear_after,
    refuses=lambda c: _needs_a_rest("value=shrunk", c.value_dim, c),
)(linear_value)


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
        self.weight = mx.zeros((n_heads * head_dim, slice_dim))
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
        return self.weight.reshape(self.n_heads, -1, self.weight.shape[1])


def _sliced(c: AttentionConfig, n_heads: int, width: int) -> SlicedLinear:
    return SlicedLinear(n_heads, c.d_in // n_heads, width, c.qkv_bias)


def _needs_equal_slices(c: AttentionConfig) -> str:
    if c.d_in % c.n_heads == c.d_in % c.n_kv_heads == 0:
        return ""
    return (
        f"sliced maps cut emb_dim={c.d_in} into n_heads={c.n_heads} and n_kv_heads={c.n_kv_heads} "
        "equal slices: choose numbers of heads that divide it"
    )


_ASKED = "a question of readers: cut x into heads before the projection, or after it?"

choice(
    "score",
    "sliced",
    "q_h = x[slice h] W_query_h, k_h = x[slice h] W_key_h",
    same_as="separate",
    source=_ASKED,
    weights={
        "W_query": lambda c: _sliced(c, c.n_heads, c.head_dim),
        "W_key": lambda c: _sliced(c, c.n_kv_heads, c.head_dim),
    },
    refuses=_needs_equal_slices,
)(separate)

choice(
    "value",
    "sliced",
    "v_h = x[slice h] W_value_h",
    same_as="linear",
    source=_ASKED,
    weights={"W_value": lambda c: _sliced(c, c.n_kv_heads, c.value_dim)},
    after=linear_after,
    refuses=_needs_equal_slices,
)(linear_value)
