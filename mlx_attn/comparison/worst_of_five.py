"""P-values that hold in the worst of five families of distributions of differences.

Student's t keeps its promise for normal differences; with five seeds of a skewed distribution it
errs in 12 % of all cases instead of 5. Here a p-value is the largest over a family of distributions
F, found by simulation, of t = mean / standard error:

    p(t, n) = max_F P_F(|T_n| >= |t|)

The price is width: with 5 seeds 4.7 standard errors instead of 2.8. Studies registered with this
test keep it.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from math import sqrt

import numpy as np
from jaxtyping import Float64

_SAMPLES = 50_000  # of each distribution


def _normal(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return random.standard_normal(shape)


def _heavy_tailed(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return random.standard_t(3, shape)


def _skewed(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return random.exponential(size=shape) - 1


def _spiked(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """One run in ten ends five standard deviations away."""
    return random.standard_normal(shape) + 5 * (random.random(shape) < 0.1) - 0.5


def _two_peaked(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Solved or not, as often one as the other."""
    return random.choice((-1.0, 1.0), shape) + 0.5 * random.standard_normal(shape)


FAMILIES: Mapping[str, Callable[[np.random.Generator, tuple[int, int]], np.ndarray]] = {
    "normal": _normal,
    "t with 3 degrees of freedom": _heavy_tailed,
    "skewed": _skewed,
    "spiked": _spiked,
    "two peaks": _two_peaked,
}
"""Distributions of mean 0 that differences between runs may have, each also mirrored."""


@lru_cache(maxsize=64)
def _null_statistics(n: int) -> tuple[Float64[np.ndarray, "samples"], ...]:
    """Sorted t of n differences of mean 0, for each family; the same in every process."""
    found = []
    for place, draw in enumerate(FAMILIES.values()):
        x = draw(np.random.default_rng([n, place]), (_SAMPLES, n))
        found.append(np.sort(x.mean(1) / x.std(1, ddof=1) * sqrt(n)))
    return tuple(found)


def two_sided(t: float | np.ndarray, n: int) -> Float64[np.ndarray, "..."]:
    """P(|T_n| >= |t|) in the worst family; 1 for a single difference, whose spread is unknown."""
    reach = np.abs(np.asarray(t, float))
    if n < 2:
        return np.ones_like(reach)
    beyond = [
        np.searchsorted(null, -reach, "right") + _SAMPLES - np.searchsorted(null, reach)
        for null in _null_statistics(n)
    ]
    return np.asarray((np.max(beyond, axis=0) + 1) / (_SAMPLES + 1))


def one_sided(t: float | np.ndarray, n: int) -> Float64[np.ndarray, "..."]:
    """P(T_n >= t) in the worst family or its mirror image; 1 for a single difference."""
    reach = np.asarray(t, float)
    if n < 2:
        return np.ones_like(reach)
    beyond = [
        np.maximum(np.searchsorted(null, -reach, "right"), _SAMPLES - np.searchsorted(null, reach))
        for null in _null_statistics(n)
    ]
    return np.asarray((np.max(beyond, axis=0) + 1) / (_SAMPLES + 1))


@lru_cache(maxsize=1024)
def critical(level: float, n: int, sides: int = 2) -> float:
    """The t that is exceeded with a probability of at most `level` in every family."""
    nulls = _null_statistics(n)
    if sides == 2:
        return float(max(np.quantile(np.abs(null), 1 - level) for null in nulls))
    return float(max(np.quantile(one, 1 - level) for null in nulls for one in (null, -null)))
