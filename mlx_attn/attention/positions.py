"""Positions that act inside attention: ALiBi's bias and RoPE's rotation.

Learned positions are added to the input by the model, and nothing happens here.
"""

import math
from collections.abc import Callable

import mlx.core as mx
from jaxtyping import Float

ROPE_BASE = 10000.0

Rotation = Callable[[mx.array, int], mx.array]


def unrotated(y: mx.array, offset: int) -> mx.array:
    """The rotation of every position kind but RoPE: none."""
    return y


def rope(y: Float[mx.array, "B H T D"], offset: int) -> Float[mx.array, "B H T D"]:
    """Rotate pairs of coordinates by an angle that grows with position (RoPE, arXiv:2104.09864).

    Args:
        y: Queries or keys, D even.
        offset: Position of the first of the T tokens.
    """
    return mx.fast.rope(y, y.shape[-1], traditional=False, base=ROPE_BASE, scale=1.0, offset=offset)


def alibi_slopes(n_heads: int) -> list[float]:
    """One slope per head, a geometric series (ALiBi, arXiv:2108.12409, section 3).

    For a power of two H the series is 2^(-8/H), 2^(-16/H), ...; for other H the next smaller power
    of two gives its slopes, and every second slope of the next larger one the rest.
    """
    power = 2 ** math.floor(math.log2(n_heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    between = [2 ** (-4 * (i + 1) / power) for i in range(0, 2 * power, 2)]
    return slopes + between[: n_heads - power]


def alibi_bias(slopes: Float[mx.array, " H"], T_q: int, T_k: int) -> Float[mx.array, "H T_q T_k"]:
    """-slope_h (i - j), with the last query at the last key."""
    query = mx.arange(T_k - T_q, T_k)[:, None]
    distance = query - mx.arange(T_k)[None, :]
    return -slopes[:, None, None] * distance


def causal_mask(T_q: int, T_k: int) -> Float[mx.array, "T_q T_k"]:
    """0 where key j is not after query i, minus infinity where it is; the last query sees all."""
    query = mx.arange(T_k - T_q, T_k)[:, None]
    return mx.where(mx.arange(T_k)[None, :] <= query, 0.0, -mx.inf)
