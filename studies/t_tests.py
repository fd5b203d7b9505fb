"""Tests of the mean of paired differences whose p-values hold if some runs go wrong.

Student's t keeps its promise for normal differences; with five seeds of a skewed distribution it
errs in 12 % of all cases instead of 5. Here a p-value is the largest over a family of distributions
F, found by simulation of the same statistic T:

    p(T, n) = max_F P_F(|T_n| >= |T|)

"moderated-t" decides. It also uses what other runs tell about the spread, and on which side the
tail is:

    s^2 = ((n - 1) sd^2 + prior * pooled) / (n - 1 + prior)            Smyth (2004)
    t   = mean / (s / sqrt(n)),   a = skewness / (2 sqrt(n)) * (n - 1) / (n - 1 + prior)
    T   = t + a t^2 / 3 + a^2 t^3 / 27 + a / 6                         Hall (1992), half

Half of Hall's correction: the skewness of few differences is mostly noise (simulated, five to
twelve seeds: half of it finds more than none or all).

`pooled` is the mean variance of runs that the mean does not use: the arm's tuning runs and other
arms. It counts as `prior` more degrees of freedom, a number that is fixed. Smyth estimates it; from
few arms the estimate is poor exactly if runs go wrong (simulated, three arms with one run in ten
failing: 42 % false words, with a fixed number 4 %).

"worst-of-five", which the first studies registered, is the same without other runs and without the
correction.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from typing import Any, Self

import numpy as np
from jaxtyping import Float64

_SAMPLES = 50_000  # of each distribution
_GROUP = 3  # runs that a pooled variance is simulated from, two degrees of freedom


FAMILIES: Mapping[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = {
    "normal": lambda random, shape: random.standard_normal(shape),
    "t with 3 degrees of freedom": lambda random, shape: random.standard_t(3, shape),
    "skewed": lambda random, shape: random.exponential(size=shape) - 1,
    # One run in ten ends five standard deviations away.
    "spiked": lambda random, shape: (
        random.standard_normal(shape) + 5 * (random.random(shape) < 0.1) - 0.5
    ),
    # Runs solve a task or do not, with equal probability.
    "two peaks": lambda random, shape: (
        random.choice((-1.0, 1.0), shape) + 0.5 * random.standard_normal(shape)
    ),
}
"""Distributions of mean 0 that differences between runs may have, each also mirrored."""


def skewness_of(differences: Float64[np.ndarray, "... n"]) -> Float64[np.ndarray, "..."]:
    """Return the third central moment over the cubed standard deviation; 0 without spread."""
    # [..., n]; the order of the operations fixes the last bits, and so the simulated p-values.
    centred = differences - differences.mean(-1, keepdims=True)
    squares = centred * centred
    sd = np.sqrt(squares.mean(-1))
    return np.divide((squares * centred).mean(-1), sd**3, out=np.zeros_like(sd), where=sd > 0)


@dataclass(frozen=True, slots=True)
class TTest:
    """A test of the mean of n differences.

    Attributes:
        n: Number of differences; for one, every p-value is 1.
        prior: Degrees of freedom that the pooled variance counts for, even.
        corrected: True if t is corrected for skewness; "worst-of-five" is not.
    """

    n: int
    prior: float = 0
    corrected: bool = True

    @classmethod
    def worst_of_five(cls, n: int) -> Self:
        """Return the test "worst-of-five" of n differences."""
        return cls(n, corrected=False)

    @property
    def degrees(self) -> float:
        """Degrees of freedom of the variance."""
        return self.n - 1 + self.prior

    @property
    def own_weight(self) -> float:
        """The share of the degrees of freedom that the n differences have themselves."""
        return (self.n - 1) / (self.n - 1 + self.prior) if self.n > 1 else 0.0

    def variance(self, own: Any, pooled: Any) -> Any:
        """Return the weighted mean of the variance of the n differences and the pooled one."""
        # own_weight = (n - 1) / (n - 1 + prior)
        return self.own_weight * own + (1 - self.own_weight) * pooled

    def statistic(self, t: Any, skewness: Any) -> Any:
        """Return T of a mean in standard errors; it rises with t."""
        if not self.corrected:
            return t
        # T = ((1 + a t / 3)^3 - 1) / a + a / 6: a cube, so it rises with t everywhere.
        a = self._correction(skewness)
        return t + a / 3 * t**2 + a**2 / 27 * t**3 + a / 6

    def _correction(self, skewness: Any) -> Any:
        return skewness * self.own_weight / (2 * sqrt(self.n))

    def in_errors(self, statistic: float, skewness: float) -> float:
        """Return the t of a T: the inverse of `statistic`."""
        a = self._correction(skewness) if self.corrected else 0.0
        if abs(a) < 1e-9:  # below it the next line loses all digits
            return statistic
        # The same cube solved for t.
        return 3 / a * (float(np.cbrt(1 + a * (statistic - a / 6))) - 1)

    def two_sided(self, statistic: float | np.ndarray) -> Float64[np.ndarray, "..."]:
        """Return P(|T_n| >= |T|) in the worst family; 1 for a single difference."""
        return self._p_value(np.abs(statistic), np.add)

    def one_sided(self, statistic: float | np.ndarray) -> Float64[np.ndarray, "..."]:
        """Return P(T_n >= T) in the worst family or its mirror image; 1 for a single difference."""
        # The mirror image's T above T are this family's below -T.
        return self._p_value(statistic, np.maximum)

    def _p_value(self, statistic: float | np.ndarray, joined: np.ufunc) -> np.ndarray:
        """Return the p-value by the numbers of simulated T up to -T and from T on, joined."""
        reach = np.asarray(statistic, float)
        if self.n < 2:
            return np.ones_like(reach)
        beyond = [
            joined(np.searchsorted(null, -reach, "right"), _SAMPLES - np.searchsorted(null, reach))
            for null in _null_statistics(self)
        ]
        # One is added to both counts, so that no p-value is 0 (Davison and Hinkley, 1997).
        return np.asarray((np.max(beyond, axis=0) + 1) / (_SAMPLES + 1))

    def critical(self, level: float, sides: int = 2) -> float:
        """Return the T that is exceeded with a probability of at most `level` in every family."""
        return _critical(self, level, sides)


@lru_cache(maxsize=64)
def _null_statistics(test: TTest) -> tuple[Float64[np.ndarray, "samples"], ...]:
    """Return sorted T of n differences of mean 0, for each family; the same in every process."""
    nulls = []
    for place, draw in enumerate(FAMILIES.values()):
        if not test.corrected:
            # [samples, n]; studies registered this test, so its random numbers must stay the same.
            x = draw(np.random.default_rng([test.n, place]), (_SAMPLES, test.n))
            nulls.append(np.sort(x.mean(1) / x.std(1, ddof=1) * sqrt(test.n)))
        else:
            random = np.random.default_rng([test.n, int(test.prior), place])
            nulls.append(np.sort(_drawn_statistics(test, draw, random, _SAMPLES)))
    return tuple(nulls)


def _drawn_statistics(
    test: TTest, draw: Callable[..., np.ndarray], random: np.random.Generator, samples: int
) -> Float64[np.ndarray, "samples"]:
    """Return T of differences from one family, their pooled variance from the same one."""
    # [samples, n]
    x = draw(random, (samples, test.n))
    pooled: Any = 0.0
    if test.prior:
        # [samples, groups, 3] -> the mean variance of the groups, [samples]
        others = draw(random, (samples, int(test.prior) // (_GROUP - 1), _GROUP))
        pooled = others.var(-1, ddof=1).mean(-1)
    variance = test.variance(x.var(1, ddof=1), pooled)
    return test.statistic(x.mean(1) / np.sqrt(variance / test.n), skewness_of(x))


@lru_cache(maxsize=1024)
def _critical(test: TTest, level: float, sides: int) -> float:
    nulls = _null_statistics(test)
    # The largest threshold of all families holds in each of them.
    if sides == 2:
        return float(max(np.quantile(np.abs(null), 1 - level) for null in nulls))
    # `-null` is the mirrored family: a tail may be on either side.
    return float(max(np.quantile(one, 1 - level) for null in nulls for one in (null, -null)))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Adjust p-values for their number, so that all together err as rarely as one (Holm, 1979)."""
    names = sorted(p_values, key=lambda name: p_values[name])
    # The smallest of m p-values is multiplied by m, the next by m - 1, ..., the largest by 1.
    raised = [p_values[name] * (len(names) - place) for place, name in enumerate(names)]
    # Never below the adjusted value of a smaller p-value, and at most 1.
    adjusted = dict(zip(names, np.minimum(np.maximum.accumulate(raised), 1).tolist(), strict=True))
    return {name: adjusted[name] for name in p_values}


def benjamini_hochberg(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return for each p-value the false discovery rate of calling all up to it differences.

    q_k = min over j >= k of p_j m / j, for the m p-values in rising order (1995).
    """
    names = sorted(p_values, key=lambda name: p_values[name], reverse=True)
    ranks = range(len(names), 0, -1)
    raised = [p_values[name] * len(names) / rank for name, rank in zip(names, ranks, strict=True)]
    q = dict(zip(names, np.minimum(np.minimum.accumulate(raised), 1).tolist(), strict=True))
    return {name: q[name] for name in p_values}
