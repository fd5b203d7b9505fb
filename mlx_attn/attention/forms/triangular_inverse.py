"""The inverse of a unit lower triangular matrix, which delta rules and PaTH have in common."""

import mlx.core as mx
from jaxtyping import Float

from mlx_attn.attention.config import AttentionConfig


def unit_lower_inverse(L: Float[mx.array, "B H T T"]) -> Float[mx.array, "B H T T"]:
    """Return (I + L)^-1 for an L that is 0 on and above its diagonal, by halves.

        (A 0; C B)^-1 = (A^-1 0; -B^-1 C A^-1  B^-1)

    All blocks of a size are inverted together, so log2 T levels of matrix products do it. Products
    of powers, (I - L)(I + L^2)(I + L^4)..., give the same without rounding, and nothing usable with
    it: the powers of L grow before they vanish.
    """
    T, B, corners = L.shape[-1], L.shape[0], []  # from large to small
    if T == 1:
        return mx.ones_like(L)
    size = 2
    # The next power of two; the padding below has L = 0, whose inverse is the identity.
    while size < T:
        size = 2 * size
    L = mx.concatenate([L, mx.zeros_like(L)], -1)[..., :size]
    L = mx.concatenate([L, mx.zeros_like(L)], -2)[..., :size, :]
    # Store the corner C of every block, and stack A and B along the batch: [2 B, H, size, size].
    while size > 2:
        size = size // 2
        corners.append(L[..., size:, :size])
        L = mx.concatenate([L[..., :size, :size], L[..., size:, size:]], 0)
    # For two rows the inverse is I - L: L^2 is 0.
    inverse = mx.eye(2, dtype=L.dtype) - L
    # Join pairs of blocks again, from the smallest to the whole.
    for corner in corners[::-1]:
        first, second = inverse[: corner.shape[0]], inverse[corner.shape[0] :]
        below = -(second @ corner @ first)
        above = mx.concatenate([first, mx.zeros_like(first)], -1)
        inverse = mx.concatenate([above, mx.concatenate([below, second], -1)], -2)
    return inverse[:B, :, :T, :T]  # without the padding


def inverse_cost(config: AttentionConfig) -> int:
    """Count, per token at full context, k k^T, the inverse, and its product with q k^T."""
    T, width = config.context_length, config.choice("score").shape(config)[1]
    return config.n_maps * (T * width + T * T // 3 + T * T)
