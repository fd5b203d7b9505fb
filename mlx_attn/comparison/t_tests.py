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

"worst-of-five", which older studies registered, is the same without other runs and without the
correction.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import sqrt
from typing import Any, Self

import numpy as np
from jaxtyping import Float64
from scipy import optimize, special

from mlx_attn.errors import ConfigError

MOST_SEEDS = 1000
"""Where `required_seeds` stops looking."""

_POWER, _NODES = 0.8, 500
_SAMPLES = 50_000  # of each distribution
_DRAWN = 20_000  # for powers and for several looks
_SIMULATED_SEEDS = 12  # plans extrapolate from here
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

    @property
    def is_simulated(self) -> bool:
        """True if powers are simulated: with few seeds the correction for skewness lowers them."""
        return self.corrected and self.n <= _SIMULATED_SEEDS

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

    def student(self, t: float) -> float:
        """Return P(Student's t < t) with the variance's degrees of freedom."""
        return float(special.stdtr(self.degrees, t))

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

    def planned_critical(self, level: float, sides: int = 2) -> float:
        """Extrapolate `critical`: its excess over Student's t shrinks as 1 / sqrt(n)."""
        most = _SIMULATED_SEEDS
        if self.n <= most:
            return self.critical(level, sides)
        shorter = replace(self, n=most)
        # Student's t at both n, and how much larger the simulated threshold is at the smaller one.
        student, shorter_student = special.stdtrit(
            [self.degrees, shorter.degrees], 1 - level / sides
        )
        excess = shorter.critical(level, sides) / shorter_student - 1
        return float(student * (1 + excess * sqrt(most / self.n)))


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


def minimum_detectable_effect(
    sd: float, test: TTest, confidence: float = 0.95, arms: int = 1
) -> float:
    """Return the smallest true mean that a test finds in normal differences, in sd's unit.

    With a power of 0.8; for several arms judged together, at Holm's strictest level,
    (1 - confidence) / arms.
    """
    if test.n < 2:
        raise ConfigError(f"a spread needs at least 2 seeds: got {test.n}")
    return sd * _detectable(test, (1 - confidence) / arms)


def required_seeds(
    sd: float,
    difference: float,
    test: TTest,
    margin: float = 0.0,
    confidence: float = 0.95,
    arms: int = 1,
) -> int:
    """Return the fewest seeds that decide: a difference is found, or shown to be within the margin.

    With a power of 0.8. `difference` is the true one, in the unit of sd like the margin. The number
    of seeds in `test` is replaced. MOST_SEEDS: as many or more.
    """
    if sd == 0:
        return 2 if difference or margin else MOST_SEEDS
    level = (1 - confidence) / arms

    # Whichever of the two tests is likelier to decide.
    def power_of(n: int) -> float:
        planned = replace(test, n=n)
        of_difference = power_of_difference(difference / sd, planned, level)
        of_equivalence = power_of_equivalence(difference / sd, margin / sd, planned, level)
        return max(of_difference, of_equivalence)

    # Power rises with n, so a bisection finds the first n that has enough.
    return 2 + bisect_left(range(2, MOST_SEEDS), _POWER, key=power_of)


def power_of_difference(effect: float, test: TTest, level: float) -> float:
    """Return the power to find an effect, in standard deviations, of normal differences."""
    # In units of the mean's standard error, the effect is effect * sqrt(n).
    threshold, shift = test.planned_critical(level), effect * sqrt(test.n)
    if test.is_simulated:
        z, sds, skewness = _normal_samples(test)
        return float(np.mean(np.abs(test.statistic((z + shift) / sds, skewness)) > threshold))
    # Given s, the mean is normal: P(z + shift > c s) = Phi(shift - c s).
    reach = threshold * _observed_sds(test.degrees)
    return float(np.mean(special.ndtr(shift - reach) + special.ndtr(-shift - reach)))


def power_of_equivalence(effect: float, margin: float, test: TTest, level: float) -> float:
    """Return the power of two one-sided tests that the effect is within the margin, likewise."""
    threshold = test.planned_critical(level, sides=1)
    shift, far = effect * sqrt(test.n), margin * sqrt(test.n)
    if test.is_simulated:
        z, sds, skewness = _normal_samples(test)
        # Distances to both ends of the margin, in observed standard errors.
        above, below = ((z + shift + side * far) / sds for side in (1, -1))
        inside = test.statistic(above, skewness) > threshold
        return float(np.mean(inside & (test.statistic(below, skewness) < -threshold)))
    # Both tests reject if |z + shift| < far - c s; impossible where that is negative.
    reach = far - threshold * _observed_sds(test.degrees)
    return float(np.mean(np.maximum(special.ndtr(reach - shift) - special.ndtr(-reach - shift), 0)))


@lru_cache(maxsize=64)
def _normal_samples(test: TTest) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return sqrt(n) * mean, s and skewness of normal differences of mean 0 and deviation 1."""
    random = np.random.default_rng(test.n)
    x = random.standard_normal((_DRAWN, test.n))
    # A variance with `prior` degrees of freedom is chi2 / prior.
    pooled = random.chisquare(test.prior, _DRAWN) / test.prior if test.prior else 0.0
    # [_DRAWN]
    sds = np.sqrt(test.variance(x.var(1, ddof=1), pooled))
    return x.mean(1) * sqrt(test.n), sds, skewness_of(x)


@lru_cache(maxsize=256)
def _detectable(test: TTest, level: float) -> float:
    """Return the effect, in standard deviations, that is found with a power of 0.8."""
    # Double until the root lies between 0 and the largest effect.
    largest = 1.0
    while power_of_difference(largest, test, level) < _POWER:
        largest *= 2
    solution = optimize.root_scalar(
        lambda effect: power_of_difference(effect, test, level) - _POWER, bracket=(0, largest)
    )
    return float(solution.root)


@lru_cache(maxsize=256)
def _observed_sds(degrees: float) -> Float64[np.ndarray, "nodes"]:
    """Return equally likely observed deviations, sqrt(chi2 / df), of differences with deviation 1.

    Powers are means over them: scipy has a noncentral t law for one test, but not for two tests.
    """
    # The midpoints of equal parts of the probability, turned into quantiles of chi2.
    likelihoods = (np.arange(_NODES) + 0.5) / _NODES
    return np.sqrt(2 * special.gammaincinv(degrees / 2, likelihoods) / degrees)


@lru_cache(maxsize=64)
def level_of_looks(level: float, looks: tuple[int, ...], prior: int = 0) -> float:
    """Return the p-value that a word needs at every look (Pocock, 1977), by simulation.

    In every family of distributions, differences of mean 0 have a p-value so small at any of the
    looks with a probability of at most `level`. Looks share most of their data, so that this is
    more than the share `level / len(looks)` of Bonferroni.

    Args:
        level: Of all looks together.
        looks: Numbers of seeds, each more than the last.
        prior: Degrees of freedom of the pooled variance.
    """
    if len(looks) < 2:
        return level
    # The strictest family decides: in every other one false words are rarer still.
    return min(
        float(np.quantile(smallest, level))
        for place in range(len(FAMILIES))
        for smallest in _smallest_p_values(looks, prior, place)
    )


def _smallest_p_values(
    looks: Sequence[int], prior: int, place: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the smallest p-value of all looks in one family: two-sided, one-sided both ways."""
    random, draw = np.random.default_rng([*looks, place]), [*FAMILIES.values()][place]
    # [_DRAWN, seeds]; every look sees the first n seeds of the same experiment.
    x = draw(random, (_DRAWN, looks[-1]))
    pooled = draw(random, (_DRAWN, prior // 2, 3)).var(-1, ddof=1).mean(-1) if prior else 0.0
    two, up, down = (np.ones(_DRAWN) for _ in range(3))
    for n in looks:
        test, seen = TTest(n, prior), x[:, :n]
        error = np.sqrt(test.variance(seen.var(1, ddof=1), pooled) / n)
        statistic = test.statistic(seen.mean(1) / error, skewness_of(seen))
        # A word falls at any look, so the smallest p-value of all looks counts.
        two = np.minimum(two, test.two_sided(statistic))
        up = np.minimum(up, test.one_sided(statistic))
        down = np.minimum(down, test.one_sided(-statistic))
    return two, up, down
