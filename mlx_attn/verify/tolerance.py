"""Compare results of MLX with expected ones, and measure how this device rounds a product.

A difference is the largest one divided by the largest expected number. MLX rounds the factors of
float32 products to TF32 on newer Apple and NVIDIA GPUs, unless `MLX_ENABLE_TF32=0`. Such a device
gets larger tolerances; one that rounds worse does not.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from mlx_attn.verify.reference import Array, Numbers, direction, slope


@dataclass(frozen=True, slots=True)
class Rounding:
    """A number format of products, and the differences that it explains."""

    name: str
    most: float  # error of a product, as root mean square relative to the result's
    tolerance: float  # difference of any other result


FLOAT32 = Rounding("float32", most=1e-5, tolerance=1e-4)
TF32 = Rounding("TF32", most=1e-3, tolerance=1e-2)


def product_error() -> float:
    """Return the largest error of float32 products of several sizes, which may use other kernels.

    The error is a root mean square relative to the result's: about 1e-7 in float32, 3e-4 in TF32
    (10 bits after the point), 2e-3 in bfloat16 (7 bits).
    """
    largest = 0.0
    for width in (64, 256, 1024):
        numbers = Numbers(1)
        a, b = numbers(width, width), numbers(width, width)
        error = as_numpy(as_mlx(a) @ as_mlx(b)) - a @ b
        largest = max(largest, float(np.linalg.norm(error) / np.linalg.norm(a @ b)))
    return largest


def measured_rounding() -> Rounding:
    """Return the rounding of the default device; float32's if it is worse than TF32, or fails.

    A device that raises here also fails the check of products.
    """
    with suppress(Exception):
        return TF32 if FLOAT32.most < product_error() <= TF32.most else FLOAT32
    return FLOAT32


@dataclass(frozen=True, slots=True)
class Comparison:
    """The difference of a result from the expected one."""

    case: str  # the kernel and the shape
    difference: float
    tolerance: float  # the largest difference that is right; 0 if the bits must be the same
    note: str = ""

    @property
    def is_right(self) -> bool:
        """Return True if the difference is within the tolerance; NaN is wrong."""
        return self.difference <= self.tolerance

    @property
    def share(self) -> float:
        """Return the difference relative to the tolerance, or the difference if that is 0."""
        share = self.difference / (self.tolerance or 1.0)
        return float("inf") if np.isnan(share) else share


def compared(case: str, result: mx.array, expected: Array, tolerance: float) -> Comparison:
    """Compare a result of MLX with the expected one; see `difference`."""
    return Comparison(case, difference(as_numpy(result), expected), tolerance)


def difference(result: Array, expected: Array) -> float:
    """Return the largest difference over the largest expected number; inf if shapes differ."""
    if result.shape != expected.shape:
        return float("inf")
    return float(np.abs(result - expected).max()) / (float(np.abs(expected).max()) or 1.0)


def compared_slope(
    case: str, gradient: mx.array, expected: float, tolerance: float, least: float = 0.0
) -> Comparison:
    """Compare a gradient of MLX along `direction` with the slope of NumPy's function.

    The difference is relative to the gradient's length, or to `least` if that is more.
    """
    array = as_numpy(gradient)
    apart = abs(float((array * direction(array)).sum()) - expected)
    return Comparison(case, apart / (max(float(np.linalg.norm(array)), least) or 1.0), tolerance)


def with_gradients(
    functions: Mapping[str, Callable[..., mx.array]],
    expected: Callable[..., Array],
    inputs: Sequence[Array],
    tolerance: float,
    names: str = "x",
) -> Iterator[Comparison]:
    """Compare functions of arrays, by case, with NumPy's, and the gradient of each named input."""
    y, arrays = expected(*inputs), [as_mlx(x) for x in inputs]
    # Unlike `direction`: w J w would be blind to a Jacobian that is transposed.
    weights = Numbers(1)(*y.shape)
    slopes = []
    for i in range(len(names)):

        def weighted(x: Array, i: int = i) -> float:
            return float((expected(*inputs[:i], x, *inputs[i + 1 :]) * weights).sum())

        slopes.append(slope(weighted, inputs[i]))
    for case, function in functions.items():
        yield compared(case, function(*arrays), y, tolerance)
        if names:
            _, gradients = mx.vjp(lambda *x, f=function: [f(*x)], arrays, [as_mlx(weights)])
            for name, gradient, rise in zip(names, gradients, slopes, strict=True):
                yield compared_slope(f"{case}, gradient of {name}", gradient, rise, tolerance)


def as_mlx(array: Array) -> mx.array:
    """Convert to float32, or to integers."""
    return mx.array(array.astype(np.int32 if array.dtype.kind == "i" else np.float32))


def as_numpy(array: mx.array) -> Array:
    """Convert to float64."""
    return np.array(array.astype(mx.float32)).astype(np.float64)
