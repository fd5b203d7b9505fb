"""Softmax, attention, the loss and GELU, as each device computes them fastest.

MLX's exponential takes 12 ns per number on a Linux processor, because it does not use vector
instructions. Sums, products and shifts do, so they compute 2^x here: with n the integer nearest to
x and f = x - n,

    2^x = 2^n 2^f,   2^f ~ 1 + c_1 f + ... + c_5 f^5 for |f| <= 1/2,   e^x = 2^(x log2 e)

Facts about Metal in mlx 0.32.4, read from its source and its Metal library. This project has not
tried them on a Mac (docs/tested.md). They are code, so tests can apply them on any machine.

- A fused kernel for more than 8 queries needs query and value heads of one width in `_FULL_WIDTHS`.
- Up to 8 queries (decoding) another kernel serves `_VECTOR_WIDTHS`, as long as queries times query
  heads per key head do not exceed 32. Its gradient raises.
- Under a gradient an array mask (ALiBi) takes the unfused path; "causal" stays fused.
- float64 and `mx.linalg` decompositions have no Metal kernel: they must name the CPU stream.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from jaxtyping import Float, Integer

from mlx_attn.machine.device import on_gpu, on_linux_cpu
from mlx_attn.machine.graphs import FEW, Differentiable, has_gradients, is_compiled

LOG2_E = math.log2(math.e)

_POLYNOMIAL = (
    0.0013264727252646133,
    0.009671512785777586,
    0.05550733744471167,
    0.24022242083111767,
    0.6931469775976781,
    1.0,
)
"""c_5 to c_0: of all that give 2^0 = 1 those with the smallest largest relative error, 9.1e-8.

Found by Lawson's iteration, least squares whose weights are multiplied by the errors left."""

_EXPONENT_BIAS, _FRACTION_BITS = 127, 23

_ROUNDING = 1.5 * 2.0**_FRACTION_BITS + _EXPONENT_BIAS
"""Added to a number it leaves no digits after the point, and in the lowest bits what 2^n has for
an exponent."""

_LOWEST, _HIGHEST = -127.0, 128.0  # integers n whose 2^n has the bits of zero and of infinity


def exp2(x: Float[mx.array, "*shape"]) -> Float[mx.array, "*shape"]:
    """Compute 2^x in the type of x, with a relative error of at most 2e-7 for x from -126 to 127.5.

    Above 127.5 the result is infinite, below -126.5 it is 0, and NaN stays NaN. float64 uses MLX's
    own power. Functions that call this one have gradients of their own; if `mx.vmap` loses those,
    the gradient of the polynomial has a relative error of at most 1e-5.
    """
    if x.dtype == mx.float64:
        return mx.power(2.0, x)
    exponent = mx.clip(x.astype(mx.float32), _LOWEST, _HIGHEST)
    rounded = mx.stop_gradient(exponent + _ROUNDING)
    fraction = exponent - (rounded - _ROUNDING)
    power = fraction * _POLYNOMIAL[0] + _POLYNOMIAL[1]
    for coefficient in _POLYNOMIAL[2:]:
        power = power * fraction + coefficient
    scale = mx.view(mx.view(rounded, mx.int32) << _FRACTION_BITS, mx.float32)
    return (power * scale).astype(x.dtype)


_LANES = 32  # numbers of a row that are reduced side by side before the rest


def softmax(x: Float[mx.array, "*batch n"]) -> Float[mx.array, "*batch n"]:
    """Compute e^x / sum e^x along the last axis."""
    uses_exp2 = x.dtype == mx.float64 or (on_linux_cpu() and x.size >= FEW)
    return _softmax(x) if uses_exp2 else mx.softmax(x, axis=-1)


def cross_entropy(
    logits: Float[mx.array, "*batch V"], targets: Integer[mx.array, "*batch"]
) -> Float[mx.array, "*batch"]:
    """Compute log(sum e^logits) - logits[target], in nats, of float32; targets are not checked."""
    if not on_linux_cpu():
        return mx.fast.cross_entropy(logits, targets)
    chosen = mx.take_along_axis(logits, targets[..., None], axis=-1).squeeze(-1)
    return _logsumexp(logits)[0] - chosen


def gelu(x: Float[mx.array, "*batch n"]) -> Float[mx.array, "*batch n"]:
    """Compute the activation x / (1 + e^(-2 u(x))), u(x) = sqrt(2 / pi) (x + 0.044715 x^3).

    The tanh form of GELU (arXiv:1606.08415), which GPT-2 and the book use: (1 + tanh u) / 2 is
    1 / (1 + e^(-2 u)).
    """
    if is_compiled(x):
        return _gelu_of_few(x)
    return _gelu(x)[0] if on_linux_cpu() or x.dtype == mx.float64 else nn.gelu_approx(x)


def over_rows(
    reduce: Callable[..., mx.array], x: Float[mx.array, "*batch n"]
) -> Float[mx.array, "*batch 1"]:
    """Reduce rows; fold long ones first, because MLX vectorizes every axis except the last."""
    length = x.shape[-1]
    if length < 4 * _LANES or length % _LANES:
        return reduce(x, axis=-1, keepdims=True)
    folded = x.reshape(*x.shape[:-1], -1, _LANES)
    return reduce(reduce(folded, axis=-2), axis=-1, keepdims=True)


def sum_of_squares(x: mx.array) -> mx.array:
    """Add up squares; a processor adds one after another, and loses 1 % of 8 million in a row."""
    squares = mx.square(x).flatten()
    if on_gpu():
        return squares.sum()
    rows = squares[: x.size // 1024 * 1024].reshape(-1, 1024)
    return rows.sum(axis=0).sum() + squares[rows.size :].sum()


@Differentiable
def _softmax(x: mx.array) -> mx.array:
    powers = exp2((x - over_rows(mx.max, x)) * LOG2_E)
    return powers / over_rows(mx.sum, powers)


@_softmax.vjp
def _softmax_vjp(x: mx.array, cotangent: mx.array, y: mx.array) -> mx.array:
    weighted = cotangent * y
    return weighted - y * weighted.sum(axis=-1, keepdims=True)


@Differentiable
def _logsumexp(x: mx.array) -> tuple[mx.array, mx.array, mx.array]:
    """Compute the loss, and the softmax for its gradient as numerators and denominator."""
    largest = over_rows(mx.max, x)
    powers = exp2((x - largest) * LOG2_E)
    total = over_rows(mx.sum, powers)
    return (largest + mx.log(total)).squeeze(-1), powers, total


@_logsumexp.vjp
def _logsumexp_vjp(
    x: mx.array, cotangents: tuple[mx.array, ...], outputs: tuple[mx.array, ...]
) -> mx.array:
    _, powers, total = outputs
    return powers * (cotangents[0][..., None] / total)


_GELU_SLOPE = 2 * math.sqrt(2 / math.pi)


@partial(mx.compile, shapeless=True)
def _gelu_of_few(x: mx.array) -> mx.array:
    return x * mx.sigmoid((x * x * (0.044715 * _GELU_SLOPE) + _GELU_SLOPE) * x)


@Differentiable
def _gelu(x: mx.array) -> tuple[mx.array, mx.array]:
    """Compute the activation, and 1 / (1 + e^(-2 u)) for its gradient."""
    slope = -_GELU_SLOPE * LOG2_E
    gate = 1 / (1 + exp2((mx.square(x) * (0.044715 * slope) + slope) * x))
    return x * gate, gate


@_gelu.vjp
def _gelu_vjp(
    x: mx.array, cotangents: tuple[mx.array, mx.array], outputs: tuple[mx.array, mx.array]
) -> mx.array:
    y, gate = outputs
    slope = mx.square(x) * (3 * 0.044715 * _GELU_SLOPE) + _GELU_SLOPE  # of 2 u
    return cotangents[0] * (gate + y * slope * (1 - gate))


# Attention.

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

    MLX's own operation is fused on Metal for the shapes above. On a Linux processor
    `attention_in_blocks` is faster; for one query, the sum written out has the fewest operations.
    Return None if the caller must write it out: if that is faster, if keys and values have other
    numbers of heads, or if the fused kernel lacks the gradient that follows in `training`.

    Consecutive query heads share a key if there are fewer. `mask` returns the array that is
    added to the scores; with `by_name=True` None if that is only the causal mask.
    """
    T_q, width, heads_per_key = q.shape[2], q.shape[3], q.shape[1] // k.shape[1]
    if on_linux_cpu():
        return attention_in_blocks(q, k, v, mask(), scale) if T_q > 1 else None
    if k.shape[1] != v.shape[1] or (training and refuses_gradient(width, T_q)):
        return None
    # Unfused, the operation would build the causal mask anew in every layer.
    by_name = T_q == 1 or has_fused_kernel(width, T_q, heads_per_key)
    return fused_attention(q, k, v, scale, mask(by_name=by_name))


def fused_attention(q: Heads, k: Heads, v: Heads, scale: float, bias: _Bias) -> Heads:
    """Compute softmax(scale q k^T + bias) v by MLX's own operation.

    Each head of k serves H / key_heads query heads; v has as many heads as k. `bias` includes the
    causal mask; None is only the causal mask.
    """
    causal = "causal" if q.shape[2] > 1 else None
    mask = causal if bias is None else bias.astype(q.dtype)
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)


BLOCK = 256  # queries of a text that a processor computes together


def attention_in_blocks(q: Heads, k: Heads, v: Heads, mask: mx.array, scale: float) -> Heads:
    """Compute `attention_cpu` for blocks of queries, each with the keys up to its last query.

    The mask would hide all later keys, so n blocks compute (n + 1) / 2n of the scores.
    """
    T = q.shape[2]
    if T <= BLOCK or k.shape[2] != T:  # keys from a cache may have another order
        return attention_cpu(q, k, v, mask, scale)
    heads = []
    for start in range(0, T, BLOCK):
        end = min(start + BLOCK, T)
        rows, k_seen, v_seen = q[:, :, start:end], k[:, :, :end], v[:, :, :end]
        heads.append(attention_cpu(rows, k_seen, v_seen, mask[..., start:end, :end], scale))
    return mx.concatenate(heads, axis=2)


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
    if has_gradients():  # in rows for the gradient, which an exported graph lacks
        q, k, v = mx.contiguous(q), mx.contiguous(k), mx.contiguous(v)
    scores = multiply_heads(q, k.swapaxes(2, 3)) + mask
    powers = exp2(scores - over_rows(mx.max, scores))
    total, powers = over_rows(mx.sum, powers).astype(q.dtype), powers.astype(q.dtype)
    return multiply_heads(powers, v) / total, q, k, v, powers, total


@_weighed.vjp
def _weighed_vjp(
    inputs: tuple[mx.array, ...], cotangents: tuple[mx.array, ...], outputs: tuple[mx.array, ...]
) -> tuple[mx.array, ...]:
    y, q, k, v, powers, total = outputs
    dy = mx.contiguous(cotangents[0] / total)
    dweights = multiply_heads(dy, v.swapaxes(2, 3)) - (dy * y).sum(axis=-1, keepdims=True)
    # By log2 e more than the gradient of the scores, which are of powers of two.
    dscores = powers * dweights
    dq = multiply_heads(dscores, k) * (1 / LOG2_E)
    dk = _by_columns(dscores, q, k) * (1 / LOG2_E)
    return dq, dk, _by_columns(powers, dy, v), mx.zeros_like(inputs[3])


def multiply_heads(
    rows: Float[mx.array, "B H T_q n"], matrices: Float[mx.array, "B heads n m"]
) -> Float[mx.array, "B H T_q m"]:
    """Multiply heads; those that share a matrix become rows of one product, so none is repeated."""
    B, H, T_q, _ = rows.shape
    folded = rows.reshape(B, matrices.shape[1], -1, rows.shape[-1])  # [B, heads, H / heads T_q, n]
    return (folded @ matrices).reshape(B, H, T_q, -1)


def _by_columns(
    rows: Float[mx.array, "B H T_q n"], values: Float[mx.array, "B H T_q m"], like: mx.array
) -> Float[mx.array, "B heads n m"]:
    """Compute rows^T values, summed over the heads that share a head of `like`."""
    B, heads = like.shape[:2]
    rows, values = (array.reshape(B, heads, -1, array.shape[-1]) for array in (rows, values))
    return rows.swapaxes(2, 3) @ values
