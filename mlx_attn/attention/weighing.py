"""softmax(scale q k^T + mask) v with a gradient of its own, for processors.

The weights are never divided by their sums: the sum of values is, which is smaller. The gradient
needs of a query's weights only their product with the output, for sum_j w_j (dy . v_j) = dy . y
(FlashAttention's identity, arXiv:2205.14135, appendix B), and of the heads no second copy. That is
two thirds of what the textbook's chain of derivatives does to every weight.
"""

from typing import Any

import mlx.core as mx
from jaxtyping import Float

from mlx_attn.attention.softmax import Keys, Queries, Values
from mlx_attn.exponentials import LOG2_E, row_max, row_sum


def weighed(
    q: Queries, k: Keys, v: Values, mask: mx.array, scale: float
) -> Float[mx.array, "B H T_q D"]:
    """The weighted sum of values, in the input's type.

    Args:
        q: Queries; so many heads in a row share a key or value head that there are enough of them.
        k: Keys.
        v: Values.
        mask: Added to the scores and broadcast over the batch (and heads); has no gradient.
        scale: Factor of the scores.
    """
    attend: Any = _weighed
    return attend(q * (scale * LOG2_E), k, v, mask * LOG2_E)[0]


@mx.custom_function
def _weighed(q: mx.array, k: mx.array, v: mx.array, mask: mx.array) -> tuple[mx.array, ...]:
    """The sum, and for its gradient the contiguous heads, the powers and their sums."""
    q, k, v = (mx.contiguous(heads) for heads in (q, k, v))
    scores = _by_rows(q, k.swapaxes(2, 3)) + mask
    powers = mx.power(2.0, scores - row_max(scores))
    total, powers = row_sum(powers).astype(q.dtype), powers.astype(q.dtype)
    return _by_rows(powers, v) / total, q, k, v, powers, total


@_weighed.vjp
def _weighed_vjp(
    inputs: tuple[mx.array, ...], cotangents: tuple[mx.array, ...], outputs: tuple[mx.array, ...]
) -> tuple[mx.array, ...]:
    y, q, k, v, powers, total = outputs
    dy = mx.contiguous(cotangents[0] / total)
    dweights = _by_rows(dy, v.swapaxes(2, 3)) - (dy * y).sum(axis=-1, keepdims=True)
    # By log2 e more than the gradient of the scores, which are of powers of two.
    dscores = powers * dweights
    dq = _by_rows(dscores, k) * (1 / LOG2_E)
    dk = _by_columns(dscores, q, k) * (1 / LOG2_E)
    return dq, dk, _by_columns(powers, dy, v), mx.zeros_like(inputs[3])


def _by_rows(
    rows: Float[mx.array, "B H T_q n"], matrices: Float[mx.array, "B heads n m"]
) -> Float[mx.array, "B H T_q m"]:
    """Their products; heads that share a matrix are folded into rows of one product."""
    B, H, T_q, _ = rows.shape
    folded = rows.reshape(B, matrices.shape[1], -1, rows.shape[-1])
    return (folded @ matrices).reshape(B, H, T_q, -1)


def _by_columns(
    rows: Float[mx.array, "B H T_q n"], values: Float[mx.array, "B H T_q m"], like: mx.array
) -> Float[mx.array, "B heads n m"]:
    """rows^T values, summed over the heads that share a head of `like`."""
    B, heads = like.shape[:2]
    rows, values = (array.reshape(B, heads, -1, array.shape[-1]) for array in (rows, values))
    return rows.swapaxes(2, 3) @ values
