"""Random choices made of uniform numbers alone, so that they are the same everywhere."""

import numpy as np
from jaxtyping import Float64, Int64


def choices(
    random: np.random.Generator, n: int, shape: tuple[int, ...]
) -> Int64[np.ndarray, "..."]:
    """Numbers 0 to n - 1, each equally likely, with repetition."""
    return (random.random(shape) * n).astype(np.int64)


def subsets(
    random: np.random.Generator, n: int, size: int, count: int
) -> Int64[np.ndarray, "count size"]:
    """`count` times `size` distinct ones of the numbers 0 to n - 1, in random order."""
    return random.random((count, n)).argsort(axis=1)[:, :size]


def orders(
    random: np.random.Generator, items: Int64[np.ndarray, "count size"]
) -> Int64[np.ndarray, "count size"]:
    """The items of each row in a random order."""
    return np.take_along_axis(items, random.random(items.shape).argsort(axis=1), axis=1)


def simplex(random: np.random.Generator, shape: tuple[int, ...]) -> Float64[np.ndarray, "..."]:
    """Distributions along the last axis, uniform over all distributions: Dirichlet(1, ..., 1)."""
    waits = -np.log1p(-random.random(shape))
    return waits / waits.sum(axis=-1, keepdims=True)
