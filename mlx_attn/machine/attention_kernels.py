"""Attention as each device computes it fastest: MLX's kernels, or a function for a processor.

Facts about Metal in mlx 0.32.4, read from its source and its Metal library. This project has not
tried them on a Mac (docs/tested.md). They are code, so tests can apply them on any machine.

- A fused kernel for more than 8 queries needs query and value heads of one width in `_FULL_WIDTHS`.
- Up to 8 queries (decoding) another kernel serves `_VECTOR_WIDTHS`, as long as queries times query
  heads per key head do not exceed 32. Its gradient raises.
- Under a gradient an array mask (ALiBi) takes the unfused path; "causal" stays fused.
- float64 and `mx.linalg` decompositions have no Metal kernel: they must name the CPU stream.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from jaxtyping import Float

from mlx_attn.machine.device import on_gpu, on_linux_cpu
from mlx_attn.machine.exponentials import LOG2_E, exp2, over_rows
from mlx_attn.machine.graphs import Differentiable, has_gradients

_FULL_WIDTHS = frozenset({64, 72, 80, 96, 128, 192, 256})
_VECTOR_WIDTHS = frozenset({64, 96, 128, 192, 256})
_VECTOR_QUERIES, _VECTOR_ROWS = 8, 32

Heads = Float[mx.array, "B _ _ _"]
_Bias = Float[mx.array, "*heads T_q T_k"] | None


def has_fused_kernel(width: int, T_q: int, heads_per_key: int) -> bool:
    """Return True if Metal fuses attention of one width for queries and values."""
    if T_q <= _VECTOR_QUERIES:
        return width in _VECTOR_WIDTHS and T_q * heads_per_key <= _VECTOR_ROWS
    return width in _FULL_WIDTHS


def refuses_gradient(width: int, T_q: int) -> bool:
    """Return True if the gradient of fused attention of this shape raises on Metal."""
    return T_q <= _VECTOR_QUERIES and width in _VECTOR_WIDTHS


def fuses(width: int, T_q: int, heads_per_key: int) -> bool | None:
    """Return True if one kernel computes attention of this shape on a GPU; None on a processor."""
    return has_fused_kernel(width, T_q, heads_per_key) if on_gpu() else None


def attention_by_kernel(
    q: Heads,
    k: Heads,
    v: Heads,
    scale: float,
    mask: Callable[..., Any],
    training: bool,
) -> Heads | None:
    """Compute softmax(scale q k^T + mask) v by the fastest kernel of this device.

    MLX's own operation is fused on Metal for the shapes above. On a Linux processor `attention_cpu`
    is faster; for one query, the sum written out has the fewest operations. Return None if the
    caller must write it out: if that is faster, if keys and values have other numbers of heads, or
    if the fused kernel lacks the gradient that follows in `training`.

    Consecutive query heads share a key if there are fewer. `mask` returns the array that is
    added to the scores; with `by_name=True` None if that is only the causal mask.
    """
    T_q, width, heads_per_key = q.shape[2], q.shape[3], q.shape[1] // k.shape[1]
    if on_linux_cpu():
        return attention_cpu(q, k, v, mask(), scale) if T_q > 1 else None
    if k.shape[1] != v.shape[1] or (training and refuses_gradient(width, T_q)):
        return None
    # Unfused, the operation would build the causal mask anew in every layer.
    by_name = T_q == 1 or has_fused_kernel(width, T_q, heads_per_key)
    return fused_attention(q, k, v, scale, mask(by_name=by_name))


def fused_attention(q: Heads, k: Heads, v: Heads, scale: float, bias: _Bias = None) -> Heads:
    """Compute softmax(scale q k^T + bias) v by MLX's own operation.

    Each head of k serves H / key_heads query heads; v has as many heads as k. `bias` includes the
    causal mask; None is only the causal mask.
    """
    causal = "causal" if q.shape[2] > 1 else None
    mask = causal if bias is None else bias.astype(q.dtype)
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)


def attention_cpu(
    q: Float[mx.array, "B H T_q K"],
    k: Float[mx.array, "B key_heads T_k K"],
    v: Float[mx.array, "B value_heads T_k D"],
    mask: mx.array,
    scale: float,
) -> Float[mx.array, "B H T_q D"]:
    """Compute the weighted sum of values, in the input's type.

    With fewer key or value heads, consecutive query heads share one. `mask` is added to the scores
    and broadcast over the batch (and heads); it is constant in gradients.
    """
    return _weighed(q * (scale * LOG2_E), k, v, mask * LOG2_E)[0]


@Differentiable
def _weighed(q: mx.array, k: mx.array, v: mx.array, mask: mx.array) -> tuple[mx.array, ...]:
    """Compute the sum, and the contiguous heads, powers and their sums for its gradient."""
    q, k, v = _in_rows(q), _in_rows(k), _in_rows(v)
    scores = _by_rows(q, k.swapaxes(2, 3)) + mask
    powers = exp2(scores - over_rows(mx.max, scores))
    total, powers = over_rows(mx.sum, powers).astype(q.dtype), powers.astype(q.dtype)
    return _by_rows(powers, v) / total, q, k, v, powers, total


@_weighed.vjp
def _weighed_vjp(
    inputs: tuple[mx.array, ...], cotangents: tuple[mx.array, ...], outputs: tuple[mx.array, ...]
) -> tuple[mx.array, ...]:
    y, q, k, v, powers, total = outputs
    dy = _in_rows(cotangents[0] / total)
    dweights = _by_rows(dy, v.swapaxes(2, 3)) - (dy * y).sum(axis=-1, keepdims=True)
    # By log2 e more than the gradient of the scores, which are of powers of two.
    dscores = powers * dweights
    dq = _by_rows(dscores, k) * (1 / LOG2_E)
    dk = _by_columns(dscores, q, k) * (1 / LOG2_E)
    return dq, dk, _by_columns(powers, dy, v), mx.zeros_like(inputs[3])


def _in_rows(y: mx.array) -> mx.array:
    """Return the array in rows, for its gradient, which an exported graph lacks."""
    return mx.contiguous(y) if has_gradients() else y


def _by_rows(
    rows: Float[mx.array, "B H T_q n"], matrices: Float[mx.array, "B heads n m"]
) -> Float[mx.array, "B H T_q m"]:
    """Multiply heads; those that share a matrix become rows of one product."""
    B, H, T_q, _ = rows.shape
    folded = rows.reshape(B, matrices.shape[1], -1, rows.shape[-1])
    return (folded @ matrices).reshape(B, H, T_q, -1)


def _by_columns(
    rows: Float[mx.array, "B H T_q n"], values: Float[mx.array, "B H T_q m"], like: mx.array
) -> Float[mx.array, "B heads n m"]:
    """Compute rows^T values, summed over the heads that share a head of `like`."""
    B, heads = like.shape[:2]
    rows, values = (array.reshape(B, heads, -1, array.shape[-1]) for array in (rows, values))
    return rows.swapaxes(2, 3) @ values
