"""Positions inside attention, RoPE and ALiBi, and the norm of queries and keys before RoPE.

Learned positions are added to the input by the model. A user's own are choices; these two are not,
because a kernel rotates, and ALiBi's bias is part of the mask.
"""

from functools import cache

import mlx.core as mx
from jaxtyping import Float

from mlx_attn.attention.cache import Position, Positions
from mlx_attn.attention.layer import Heads

ROPE_BASE = 10000.0


def unit_rms(y: Heads) -> Heads:
    """Divide queries or keys by their root mean square (QK-norm, without weights)."""
    if y.dtype == mx.float64:  # in which the kernel does not compute
        return y / mx.sqrt(mx.square(y).mean(-1, keepdims=True) + 1e-6)
    return mx.fast.rms_norm(y, None, 1e-6)


def rope(y: Heads, offset: Position) -> Heads:
    """Rotate pairs of coordinates by an angle that grows with position (RoPE, arXiv:2104.09864).

    The first of the T tokens is at position `offset`; D is even.
    """
    return mx.fast.rope(y, y.shape[-1], traditional=False, base=ROPE_BASE, scale=1.0, offset=offset)


@cache
def alibi_slopes(n_heads: int, repeats: int = 1) -> tuple[float, ...]:
    """Return ALiBi's slope of every head, `repeats` times: 2^-2 to 2^-8; of one head 2^-2.

    The paper's slopes (arXiv:2108.12409) depend on that number, so that models with different
    numbers of heads would also differ in their positions.
    """
    slopes = (2 ** -(2 + 6 * h / max(n_heads - 1, 1)) for h in range(n_heads))
    return tuple(slope for slope in slopes for _ in range(repeats))


def alibi_bias(slopes: Float[mx.array, " H"], positions: Positions) -> Float[mx.array, "H T_q T_k"]:
    """Return -slope_h (i - j), for queries i and keys j (ALiBi, arXiv:2108.12409)."""
    i, j = positions.queries[:, None], positions.keys
    return -slopes[:, None, None] * (i - j)  # [H, 1, 1] * [T_q, T_k]
