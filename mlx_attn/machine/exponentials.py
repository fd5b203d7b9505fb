"""Exponentials: softmax, the loss and GELU, as a Linux processor computes them fast.

MLX's exponential takes 12 ns per number on a Linux processor, because it does not use vector
instructions. Sums, products and shifts do, so they compute 2^x here: with n the integer nearest to
x and f = x - n,

    2^x = 2^n 2^f,   2^f ~ 1 + c_1 f + ... + c_5 f^5 for |f| <= 1/2,   e^x = 2^(x log2 e)

A compiled step joins all of it into one function.
"""

import math
from collections.abc import Callable
from functools import partial

import mlx.core as mx
import mlx.nn as nn
from jaxtyping import Float, Integer

from mlx_attn.machine.device import on_linux_cpu
from mlx_attn.machine.graphs import FEW, Differentiable, is_compiled

LOG2_E = math.log2(math.e)

_POLYNOMIAL = (
    0.0013264727252646133,
    0.009671512785777586,
    0.05550733744471167,
    0.24022242083111767,
    0.6931469775976781,
    1.0,
)
"""c_5 to c_0: of all that give 2^0 = 1 those with the smallest largest relative error, 9.2e-8.

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
    exponent = (x * x * 0.044715 + 1) * x * (-_GELU_SLOPE * LOG2_E)
    gate = 1 / (1 + exp2(exponent))
    return x * gate, gate


@_gelu.vjp
def _gelu_vjp(
    x: mx.array, cotangents: tuple[mx.array, mx.array], outputs: tuple[mx.array, mx.array]
) -> mx.array:
    gate = outputs[1]
    slope = (x * x * (3 * 0.044715) + 1) * _GELU_SLOPE
    return cotangents[0] * gate * (1 + x * slope * (1 - gate))
