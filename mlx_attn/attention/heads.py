"""Between one wide vector and its heads.

For a single token, as in decoding, the axes to be exchanged are one element long.
"""

import mlx.core as mx
from jaxtyping import Float


def split_heads(
    y: Float[mx.array, "B T width"], n_heads: int
) -> Float[mx.array, "B {n_heads} T head_dim"]:
    """Cut the last axis into heads: [B, T, H D] -> [B, H, T, D]."""
    if y.shape[1] == 1:
        return y.reshape(y.shape[0], n_heads, 1, -1)
    return y.reshape(*y.shape[:2], n_heads, -1).transpose(0, 2, 1, 3)


def join_heads(y: Float[mx.array, "B H T D"]) -> Float[mx.array, "B T width"]:
    """Concatenate heads, the inverse of `split_heads`: [B, H, T, D] -> [B, T, H D]."""
    if y.shape[2] == 1:
        return y.reshape(y.shape[0], 1, -1)
    return y.transpose(0, 2, 1, 3).flatten(2)
