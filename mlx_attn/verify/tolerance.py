"""Set the tolerances of comparisons, and measure how this device rounds a product.

A difference is the largest one divided by the largest expected number. MLX rounds the factors of
float32 products to TF32 on newer Apple and NVIDIA GPUs, unless `MLX_ENABLE_TF32=0`. Such a device
gets larger tolerances; one that rounds worse does not.
"""

from contextlib import suppress
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from mlx_attn.verify.reference import Array, Numbers


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
        largest = max(largest, float(np.sqrt((error**2).mean() / ((a @ b) ** 2).mean())))
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
        found = self.difference / self.tolerance if self.tolerance else self.difference
        return float("inf") if np.isnan(found) else found


def compared(
    case: str, found: mx.array, expected: Array, tolerance: float, least: float = 0.0
) -> Comparison:
    """Compare a result of MLX with the expected one; see `difference`."""
    return Comparison(case, difference(as_numpy(found), expected, least), tolerance)


def difference(found: Array, expected: Array, least: float = 0.0) -> float:
    """Return the largest difference over the largest expected number, or over `least` if larger.

    It is infinite if the shapes differ.
    """
    if found.shape != expected.shape:
        return float("inf")
    largest = max(float(np.abs(expected).max()), least)
    return float(np.abs(found - expected).max()) / (largest or 1.0)


def as_mlx(array: Array) -> mx.array:
    """Convert to float32, or to integers."""
    return mx.array(array.astype(np.int32 if array.dtype.kind == "i" else np.float32))


def as_numpy(array: mx.array) -> Array:
    """Convert to float64."""
    return np.array(array.astype(mx.float32)).astype(np.float64)
