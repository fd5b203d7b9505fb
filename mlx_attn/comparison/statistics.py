"""Moderated t, what a number of seeds can show, looks at a verdict, and solve rates.

A variance of n differences is shrunk towards that of all differences measured in the same world,
as far as these agree (Smyth, 2004, "Linear models and empirical Bayes methods"):

    v = (d0 s0^2 + (n - 1) s^2) / (d0 + n - 1)    t = mean / sqrt(v / n)    with d0 + n - 1 degrees

`prior_of` finds s0^2 and d0 by the mean and the variance of log s^2. A single group of differences
has nothing to share: its t is Student's.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from math import comb, inf, log, sqrt
from statistics import stdev
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64
from scipy import optimize, special, stats

from mlx_attn.errors import ConfigError

MOST_SEEDS = 1000
"""Where `required_seeds` stops looking."""

_POWER, _NODES = 0.8, 500
_MANY = 1e6  # degrees of freedom with which a t is normal
_SAMPLES = 50_000  # of the looks at one verdict
_FEWEST, _TINY = 5, 1e-300  # differences that have a shape; a p-value whose logarithm is finite
_NO_SPREAD = 1e-4  # of the median variance: less is rounding, which tells nothing of seeds
_MOST_SPLITS = 20_000  # above this number of splits, `log_rank` draws as many at random
_ROUNDING = 1e-9  # sums that differ by less are equal but for the order of their terms


class Variance(NamedTuple):
    """The variance of some differences, and its degrees of freedom."""

    value: float
    df: float


class Prior(NamedTuple):
    """What other differences of a world say about a variance: s0^2, with d0 degrees of freedom.

    Attributes:
        most: All degrees of freedom that were measured; a moderated t has no more.
    """

    value: float = 0.0
    df: float = 0.0
    most: float = inf

    def shrunk(self, own: Variance) -> Variance:
        """Return a variance of this world, shrunk; one without spread stays as it is."""
        if not self.df or own.value < _NO_SPREAD * self.value:
            return own
        weight = 1.0 if self.df == inf else self.df / (self.df + own.df)
        value = weight * self.value + (1 - weight) * own.value
        return Variance(value, min(self.df + own.df, self.most))


def prior_of(variances: Sequence[Variance]) -> Prior:
    """Return the prior of variances that were measured in one world; none from a single one."""
    middle = float(np.median([one.value for one in variances])) if variances else 0.0
    shared = [one for one in variances if one.df > 0 and one.value > _NO_SPREAD * middle]
    if len(shared) < 2:
        return Prior()
    df = np.array([one.df for one in shared])
    logs = np.array([log(one.value) for one in shared]) - special.digamma(df / 2) + np.log(df / 2)
    excess = float(logs.var(ddof=1) - special.polygamma(1, df / 2).mean())
    most, centre = float(df.sum()), float(logs.mean())
    if excess <= 0:  # no more spread than equal variances have
        return Prior(float(np.exp(centre)), inf, most)
    half = _inverse_trigamma(excess)
    return Prior(float(np.exp(centre + special.digamma(half) - log(half))), 2 * half, most)


def _inverse_trigamma(value: float) -> float:
    """Return x with trigamma(x) = value, for positive values."""
    low, high = 1e-8, 1e8
    if not special.polygamma(1, high) < value < special.polygamma(1, low):
        return low if value > 1 else high
    found = optimize.root_scalar(
        lambda x: special.polygamma(1, x) - value, bracket=(low, high), method="brentq"
    )
    return float(found.root)


def tail(t: float, df: float) -> float:
    """Return P(T >= t) of Student's t."""
    return float(stats.t.sf(t, min(df, _MANY)))


def critical_t(level: float, df: float, sides: int = 2) -> float:
    """Return the t that is exceeded with a probability of `level`."""
    return float(special.stdtrit(min(df, _MANY), 1 - level / sides))


def level_of_looks(looks: Sequence[int], level: float) -> float:
    """Return the level of each of several looks at one verdict that together err as `level` says.

    The same for every look (Pocock, 1977), of Student's t of normal differences, by simulation.
    """
    return _level_of_looks(tuple(looks), level) if len(looks) > 1 else level


@lru_cache(maxsize=64)
def _level_of_looks(looks: tuple[int, ...], level: float) -> float:
    drawn = np.random.default_rng(looks).standard_normal((_SAMPLES, looks[-1]))
    smallest = np.ones(_SAMPLES)
    for n in looks:
        seen = drawn[:, :n]
        t = np.abs(seen.mean(1)) / seen.std(1, ddof=1) * sqrt(n)
        smallest = np.minimum(smallest, 2 * special.stdtr(n - 1, -t))
    return float(np.quantile(smallest, level))


def shape_p(groups: Sequence[Sequence[float]]) -> float:
    """Return the p-value that the differences of every group are normal.

    Shapiro and Wilk's test of each group, put together by Fisher's method; 1 without any group of
    `_FEWEST` differences that scatter.
    """
    sds = [stdev(one) if len(one) > 1 else 0.0 for one in groups]
    floor = sqrt(_NO_SPREAD) * float(np.median(sds)) if sds else 0.0
    each: list[Any] = [
        stats.shapiro(sorted(one))[1]
        for one, sd in zip(groups, sds, strict=True)
        if len(one) >= _FEWEST and sd > floor
    ]
    if not each:
        return 1.0
    together: Any = stats.combine_pvalues(np.maximum(each, _TINY))
    return float(together.pvalue)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """P-values adjusted for their number (Holm, 1979): the family errs as seldom as one test."""
    names = sorted(p_values, key=lambda name: p_values[name])
    raised = [p_values[name] * (len(names) - place) for place, name in enumerate(names)]
    adjusted = dict(zip(names, np.minimum(np.maximum.accumulate(raised), 1).tolist(), strict=True))
    return {name: adjusted[name] for name in p_values}


def minimum_detectable_effect(
    sd: float, n: int, confidence: float = 0.95, arms: int = 1, prior_df: float = 0.0
) -> float:
    """The smallest true difference that n seeds of normal differences find, in sd's unit.

    With a power of 0.8; for several arms judged together, at Holm's strictest level,
    (1 - confidence) / arms. `prior_df` are the degrees of freedom that other differences lend.
    """
    if n < 2:
        raise ConfigError(f"a spread needs at least 2 seeds: got {n}")
    return sd * _detectable(n, (1 - confidence) / arms, prior_df)


def required_seeds(
    sd: float,
    difference: float,
    margin: float = 0.0,
    confidence: float = 0.95,
    arms: int = 1,
    prior_df: float = 0.0,
) -> int:
    """The fewest seeds that decide: a difference is found, or shown to be within the margin.

    With a power of 0.8. `difference` is the true one, in the unit of sd like the margin.
    MOST_SEEDS: as many or more.
    """
    if sd == 0:
        return 2 if difference or margin else MOST_SEEDS
    level = (1 - confidence) / arms

    def power_of(n: int) -> float:
        found = power_of_difference(difference / sd, n, level, prior_df)
        return max(found, power_of_equivalence(difference / sd, margin / sd, n, level, prior_df))

    return 2 + bisect_left(range(2, MOST_SEEDS), _POWER, key=power_of)


def power_of_difference(effect: float, n: int, level: float, prior_df: float = 0.0) -> float:
    """The power to find an effect, in standard deviations, of normal differences."""
    df = n - 1 + prior_df
    threshold = critical_t(level, df) * _observed_sds(df)
    shift = effect * sqrt(n)
    return float(np.mean(special.ndtr(shift - threshold) + special.ndtr(-shift - threshold)))


def power_of_equivalence(
    effect: float, margin: float, n: int, level: float, prior_df: float = 0.0
) -> float:
    """The power of two one-sided tests that the effect is within the margin, likewise."""
    df = n - 1 + prior_df
    reach = margin * sqrt(n) - critical_t(level, df, sides=1) * _observed_sds(df)
    shift = effect * sqrt(n)
    inside = special.ndtr(reach - shift) - special.ndtr(-reach - shift)
    return float(np.mean(np.maximum(inside, 0)))


@lru_cache(maxsize=256)
def _detectable(n: int, level: float, prior_df: float) -> float:
    """The effect, in standard deviations, that is found with a power of 0.8."""
    df = n - 1 + prior_df
    largest = (critical_t(level, df) * _observed_sds(df)[-1] + 10) / sqrt(n)
    found = optimize.root_scalar(
        lambda effect: power_of_difference(effect, n, level, prior_df) - _POWER,
        bracket=(0, largest),
    )
    return float(found.root)


@lru_cache(maxsize=256)
def _observed_sds(df: float) -> Float64[np.ndarray, "nodes"]:
    """Equally likely observed deviations whose true one is 1: sqrt(chi2 / df).

    Powers are means over them: scipy has the noncentral t law of one test, of two there is none.
    """
    likelihoods = (np.arange(_NODES) + 0.5) / _NODES
    df = min(df, _MANY)
    return np.sqrt(2 * special.gammaincinv(df / 2, likelihoods) / df)


class TimeToSolve(NamedTuple):
    """Steps until a training solved its task; all its steps, censored, where it never did."""

    steps: int
    solved: bool


class SolveRate(NamedTuple):
    """How often and how soon an arm solves a task.

    The interval of the rate is Clopper and Pearson's. The median of the steps is Kaplan and
    Meier's, None where fewer than half of all trainings would solve the task.
    """

    solved: int
    runs: int
    rate: float
    interval: tuple[float, float]
    median_steps: float | None


def solve_rate(times: Sequence[TimeToSolve], confidence: float = 0.95) -> SolveRate:
    """The summary of at least one training on a task."""
    if not times:
        raise ConfigError("a solve rate needs at least one training: got none")
    solved = [time.steps for time in times if time.solved]
    censored = [time.steps for time in times if not time.solved]
    runs, median = len(times), None
    interval = stats.binomtest(len(solved), runs).proportion_ci(confidence, method="exact")
    if solved:
        unsolved = stats.ecdf(stats.CensoredData(uncensored=solved, right=censored)).sf
        half = unsolved.quantiles[unsolved.probabilities <= 0.5 + _ROUNDING]
        median = float(half[0]) if half.size else None
    ends = float(interval.low), float(interval.high)
    return SolveRate(len(solved), runs, len(solved) / runs, ends, median)


def log_rank(first: Sequence[TimeToSolve], second: Sequence[TimeToSolve]) -> float:
    """P-value of the log-rank test that two arms solve a task alike soon and often, two-sided.

    By permutation, right for few trainings too, as `scipy.stats.logrank` is not: over all splits of
    the trainings into arms of these sizes, or _MOST_SPLITS random ones, the same in every call.
    """
    if not first or not second:
        raise ConfigError("a log-rank test needs a training of each arm at least: got none of one")
    scores = _log_rank_scores([*first, *second])
    runs, size = len(scores), len(first)
    if comb(runs, size) <= _MOST_SPLITS:
        splits = np.array(list(combinations(range(runs), size)))  # the first one is the observed
    else:
        splits = np.tile(np.arange(runs), (_MOST_SPLITS, 1))
        splits[1:] = np.random.default_rng(0).permuted(splits[1:], axis=1)
    sums = np.abs(scores[splits[:, :size]].sum(1))
    return float(np.mean(sums >= sums[0] - _ROUNDING))


def _log_rank_scores(times: Sequence[TimeToSolve]) -> Float64[np.ndarray, "N"]:
    """1 if solved, minus the cumulative hazard of all trainings (Nelson and Aalen)."""
    steps = np.array([time.steps for time in times])
    solved = np.array([time.solved for time in times], dtype=float)
    hazards = solved / (steps[:, None] <= steps).sum(1)
    return solved - (hazards * (steps <= steps[:, None])).sum(1)
