"""How far a result may be from what it must be, and how this device rounds a product.

Differences are the largest one over the largest number expected. MLX rounds the factors of float32
products to TF32 on newer Apple and NVIDIA GPUs, unless `MLX_ENABLE_TF32=0`: a device that does so
is told from one that rounds worse, and its results are given more room.
"""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from mlx_attn.verify.reference import Array, Numbers


@dataclass(frozen=True, slots=True)
class Rounding:
    """A number format of products.

    Attributes:
        name: Of the format.
        most: The largest error of a product, root mean square over that of the result, that it
            explains.
        tolerance: The largest difference of any other result that it explains.
    """

    name: str
    most: float
    tolerance: float


FLOAT32 = Rounding("float32", most=1e-5, tolerance=1e-4)
TF32 = Rounding("TF32", most=1e-3, tolerance=1e-2)


def product_error() -> float:
    """The largest error of float32 products of several sizes, which may run in different kernels.

    Root mean square over that of the result: about 1e-7 in float32, 3e-4 in TF32 (10 bits after the
    point), 2e-3 in bfloat16 (7 bits).
    """
    return max(map(_product_error, (64, 256, 1024)))


def _product_error(width: int) -> float:
    numbers = Numbers(1)
    a, b = numbers(width, width), numbers(width, width)
    error = as_numpy(as_mlx(a) @ as_mlx(b)) - a @ b
    return float(np.sqrt((error**2).mean() / ((a @ b) ** 2).mean()))


def measured_rounding() -> Rounding:
    """How the default device rounds; what rounds worse than TF32 is held to float32."""
    return TF32 if FLOAT32.most < product_error() <= TF32.most else FLOAT32


@dataclass(frozen=True, slots=True)
class Comparison:
    """A result beside what it must be.

    Attributes:
        case: What was computed: the kernel and the shape.
        difference: Between the two.
        tolerance: The largest difference that is right; 0 where bits must be the same.
        note: What else is to be known.
    """

    case: str
    difference: float
    tolerance: float
    note: str = ""

    @property
    def is_right(self) -> bool:
        """A difference that is no number is wrong."""
        return self.difference <= self.tolerance

    @property
    def share(self) -> float:
        """The difference as a share of the tolerance, or itself where that is 0."""
        found = self.difference / self.tolerance if self.tolerance else self.difference
        return float("inf") if np.isnan(found) else found


def compared(
    case: str, found: mx.array, expected: Array, tolerance: float, least: float = 0.0
) -> Comparison:
    """A result of MLX beside what it must be; see `difference`."""
    return Comparison(case, difference(as_numpy(found), expected, least), tolerance)


def difference(found: Array, expected: Array, least: float = 0.0) -> float:
    """The largest difference over the largest number expected, or over `least` if that is larger.

    It is infinite where the shapes differ.
    """
    if found.shape != expected.shape:
        return float("inf")
    largest = max(float(np.abs(expected).max()), least)
    return float(np.abs(found - expected).max()) / (largest or 1.0)


def as_mlx(array: Array) -> mx.array:
    """As float32, or as whole numbers."""
    return mx.array(array.astype(np.int32 if array.dtype.kind == "i" else np.float32))


def as_numpy(array: mx.array) -> Array:
    """As float64."""
    return np.array(array.astype(mx.float32)).astype(np.float64)
