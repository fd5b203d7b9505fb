"""P-values that hold where some runs go wrong, what a number of seeds can show, and solve rates.

Student's t keeps its promise for normal differences; with five seeds of a skewed distribution it
errs in 12 % of all cases instead of 5. Here a p-value is the largest over a family of distributions
F, found by simulation, of t = mean / standard error:

    p(t, n) = max_F P_F(|T_n| >= |t|)

Differences that have two peaks, or a spike in one run of ten, are thereby held to what such runs do
by chance. The price is width: with 5 seeds 4.7 standard errors instead of 2.8, with 8 seeds 3.5
instead of 2.4.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from math import comb, sqrt
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64
from scipy import optimize, special, stats

from mlx_attn.errors import ConfigError

MOST_SEEDS = 1000
"""Where `required_seeds` stops looking."""

_POWER, _NODES = 0.8, 500
_SAMPLES = 50_000  # of each distribution
_SIMULATED_SEEDS = 12  # plans extrapolate from here
_MOST_SPLITS = 20_000  # above this number of splits, `log_rank` draws as many at random
_ROUNDING = 1e-9  # sums that differ by less are equal but for the order of their terms


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
    """P(|T_n| >= |t|) in the worst family; 1 for a single difference, which has no spread."""
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


def _planned_critical(level: float, n: int, sides: int = 2) -> float:
    """About `critical`, for plans: what it exceeds Student's t by shrinks as 1 / sqrt(n)."""
    most = _SIMULATED_SEEDS
    if n <= most:
        return critical(level, n, sides)
    student, known = special.stdtrit([n - 1, most - 1], 1 - level / sides)
    return float(student * (1 + (critical(level, most, sides) / known - 1) * sqrt(most / n)))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """P-values adjusted for their number (Holm, 1979): the family errs as seldom as one test."""
    names = sorted(p_values, key=lambda name: p_values[name])
    raised = [p_values[name] * (len(names) - place) for place, name in enumerate(names)]
    adjusted = dict(zip(names, np.minimum(np.maximum.accumulate(raised), 1).tolist(), strict=True))
    return {name: adjusted[name] for name in p_values}


def minimum_detectable_effect(sd: float, n: int, confidence: float = 0.95, arms: int = 1) -> float:
    """The smallest true difference that n seeds of normal differences find, in sd's unit.

    With a power of 0.8; for several arms judged together, at Holm's strictest level,
    (1 - confidence) / arms.
    """
    if n < 2:
        raise ConfigError(f"a spread needs at least 2 seeds: got {n}")
    return sd * _detectable(n, (1 - confidence) / arms)


def required_seeds(
    sd: float, difference: float, margin: float = 0.0, confidence: float = 0.95, arms: int = 1
) -> int:
    """The fewest seeds that decide: a difference is found, or shown to be within the margin.

    With a power of 0.8. `difference` is the true one, in the unit of sd like the margin.
    MOST_SEEDS: as many or more.
    """
    if sd == 0:
        return 2 if difference or margin else MOST_SEEDS
    level = (1 - confidence) / arms

    def power_of(n: int) -> float:
        found = power_of_difference(difference / sd, n, level)
        return max(found, power_of_equivalence(difference / sd, margin / sd, n, level))

    return 2 + bisect_left(range(2, MOST_SEEDS), _POWER, key=power_of)


def power_of_difference(effect: float, n: int, level: float) -> float:
    """The power to find an effect, in standard deviations, of normal differences."""
    threshold = _planned_critical(level, n) * _observed_sds(n)
    shift = effect * sqrt(n)
    return float(np.mean(special.ndtr(shift - threshold) + special.ndtr(-shift - threshold)))


def power_of_equivalence(effect: float, margin: float, n: int, level: float) -> float:
    """The power of two one-sided tests that the effect is within the margin, likewise."""
    reach = margin * sqrt(n) - _planned_critical(level, n, sides=1) * _observed_sds(n)
    shift = effect * sqrt(n)
    inside = special.ndtr(reach - shift) - special.ndtr(-reach - shift)
    return float(np.mean(np.maximum(inside, 0)))


@lru_cache(maxsize=256)
def _detectable(n: int, level: float) -> float:
    """The effect, in standard deviations, that is found with a power of 0.8."""
    largest = (_planned_critical(level, n) * _observed_sds(n)[-1] + 10) / sqrt(n)
    found = optimize.root_scalar(
        lambda effect: power_of_difference(effect, n, level) - _POWER, bracket=(0, largest)
    )
    return float(found.root)


@lru_cache(maxsize=256)
def _observed_sds(n: int) -> Float64[np.ndarray, "nodes"]:
    """Equally likely observed deviations of n differences whose true one is 1: sqrt(chi2 / df).

    Powers are means over them: scipy has the noncentral t law of one test, of two there is none.
    """
    likelihoods = (np.arange(_NODES) + 0.5) / _NODES
    return np.sqrt(2 * special.gammaincinv((n - 1) / 2, likelihoods) / (n - 1))


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
