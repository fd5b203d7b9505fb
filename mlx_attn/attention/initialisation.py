"""How weight matrices start. A `Draw` makes one matrix; the maps say which they need.

The merged matrices start from the factors they replace, so that every variant begins with scores
and outputs of the same spread.
"""

from typing import Protocol, runtime_checkable

import mlx.core as mx
from jaxtyping import Float


@runtime_checkable
class Draw(Protocol):
    """Makes the starting weight of a linear map."""

    def __call__(self, rows: int, columns: int, residual: bool = False) -> mx.array:
        """A (rows, columns) = (out, in) matrix; `residual` marks a map that ends a branch."""
        ...


def linear_draw(rows: int, columns: int, residual: bool = False) -> mx.array:
    """The uniform start of PyTorch's and MLX's Linear: within 1 / sqrt(columns) of 0."""
    bound = columns**-0.5
    return mx.random.uniform(-bound, bound, (rows, columns))


def start_merged(
    start: str, product: Float[mx.array, "rows columns"], spread: mx.array
) -> Float[mx.array, "rows columns"]:
    """The start of a merged matrix: the product of its factors, or Gaussian with its spread.

    Args:
        start: "product" or "matched".
        product: The product of the two factors that the matrix replaces.
        spread: Standard deviation of one element of the product, sqrt(head_dim) s_1 s_2.
    """
    if start == "product":
        return product
    return mx.random.normal(product.shape) * spread


def factor_spread(first: mx.array, second: mx.array, head_dim: int) -> mx.array:
    """Standard deviation of an element of a product of two random factors with inner size D."""
    return head_dim**0.5 * mx.std(first) * mx.std(second)
