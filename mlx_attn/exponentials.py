"""Softmax, cross-entropy and GELU, whose cost on a processor is that of their exponentials.

On the CPU back end under Linux, MLX takes 11 ns for an exponential and 4 ns for a power, so all are
computed with e^x = 2^(x log2 e) there, unless numbers are few as in decoding; elsewhere MLX's own
operations serve. The numbers agree to float32 rounding, and the gradients are the textbook's. In
float64 powers serve everywhere: MLX's exponential keeps seven digits of sixteen.
"""

import math
import shutil
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from jaxtyping import Float, Integer

FEW = 4096
"""Of fewer numbers the exponentials take less time than starting several operations does."""

LOG2_E = math.log2(math.e)
LANES = 32
"""Numbers of a row that are reduced side by side before the rest."""


def powers_are_faster() -> bool:
    """Whether this back end computes powers faster than exponentials."""
    return sys.platform == "linux" and mx.default_device().type == mx.DeviceType.cpu


def softmax(x: Float[mx.array, "*batch n"]) -> Float[mx.array, "*batch n"]:
    """e^x / sum e^x along the last axis."""
    by_powers: Any = _softmax
    return by_powers(x) if _uses_powers(x) else mx.softmax(x, axis=-1)


def cross_entropy(
    logits: Float[mx.array, "*batch V"], targets: Integer[mx.array, "*batch"]
) -> Float[mx.array, "*batch"]:
    """The loss log(sum e^logits) - logits[target], in nats.

    Args:
        logits: Float32.
        targets: Token ids in [0, V); not checked.
    """
    if not powers_are_faster():
        return mx.fast.cross_entropy(logits, targets)
    chosen = mx.take_along_axis(logits, targets[..., None], axis=-1).squeeze(-1)
    logsumexp: Any = _logsumexp
    return logsumexp(logits)[0] - chosen


def gelu(x: Float[mx.array, "*batch n"]) -> Float[mx.array, "*batch n"]:
    """The activation x / (1 + e^(-2 u(x))), u(x) = sqrt(2 / pi) (x + 0.044715 x^3).

    The tanh form of GELU (arXiv:1606.08415), which GPT-2 and the book use: (1 + tanh u) / 2 is
    1 / (1 + e^(-2 u)).
    """
    by_powers: Any = _gelu
    if _uses_powers(x) or (powers_are_faster() and not is_compiled(x)):
        return by_powers(x)[0]
    return nn.gelu_approx(x)


def row_max(x: Float[mx.array, "*batch n"]) -> Float[mx.array, "*batch 1"]:
    """The largest number of each row."""
    return _of_rows(mx.max, x)


def row_sum(x: Float[mx.array, "*batch n"]) -> Float[mx.array, "*batch 1"]:
    """The sum of each row."""
    return _of_rows(mx.sum, x)


def _of_rows(reduce: Callable[..., mx.array], x: mx.array) -> mx.array:
    """Long rows are folded first: MLX has vector instructions for all axes but the last."""
    length = x.shape[-1]
    if length < 4 * LANES or length % LANES:
        return reduce(x, axis=-1, keepdims=True)
    folded = x.reshape(*x.shape[:-1], -1, LANES)
    return reduce(reduce(folded, axis=-2), axis=-1, keepdims=True)


def is_compiled(x: mx.array) -> bool:
    """Whether to compile what is done with these numbers: few of them, where operations cost more.

    MLX's back end for Linux compiles with g++, which not every machine has.
    """
    few = x.size < FEW and x.dtype != mx.float64
    return few and powers_are_faster() and _has_compiler()


@cache
def _has_compiler() -> bool:
    return shutil.which("g++") is not None


def _uses_powers(x: mx.array) -> bool:
    return x.dtype == mx.float64 or (powers_are_faster() and x.size >= FEW)


@mx.custom_function
def _softmax(x: mx.array) -> mx.array:
    powers = mx.power(2.0, (x - row_max(x)) * LOG2_E)
    return powers / row_sum(powers)


@_softmax.vjp
def _softmax_vjp(x: mx.array, cotangent: mx.array, y: mx.array) -> mx.array:
    weighted = cotangent * y
    return weighted - y * weighted.sum(axis=-1, keepdims=True)


@mx.custom_function
def _logsumexp(x: mx.array) -> tuple[mx.array, mx.array, mx.array]:
    """The logarithm, and the softmax that its gradient needs as numerators and denominator."""
    largest = row_max(x)
    powers = mx.power(2.0, (x - largest) * LOG2_E)
    total = row_sum(powers)
    return (largest + mx.log(total)).squeeze(-1), powers, total


@_logsumexp.vjp
def _logsumexp_vjp(
    x: mx.array, cotangents: tuple[mx.array, ...], outputs: tuple[mx.array, ...]
) -> mx.array:
    _, powers, total = outputs
    return powers * (cotangents[0][..., None] / total)


_GELU_SLOPE = 2 * math.sqrt(2 / math.pi)


@mx.custom_function
def _gelu(x: mx.array) -> tuple[mx.array, mx.array]:
    """The activation, and 1 / (1 + e^(-2 u)), which its gradient needs."""
    exponent = (x * x * 0.044715 + 1) * x * (-_GELU_SLOPE * LOG2_E)
    gate = 1 / (1 + mx.power(2.0, exponent))
    return x * gate, gate


@_gelu.vjp
def _gelu_vjp(
    x: mx.array, cotangents: tuple[mx.array, mx.array], outputs: tuple[mx.array, mx.array]
) -> mx.array:
    gate = outputs[1]
    slope = (x * x * (3 * 0.044715) + 1) * _GELU_SLOPE
    return cotangents[0] * gate * (1 + x * slope * (1 - gate))
