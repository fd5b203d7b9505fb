"""Verdicts on paired differences of loss, what a number of seeds can show, and solve rates.

A verdict follows from two tests of the differences between an arm and the control, seed by seed: a
paired t test (is the mean 0?) and two one-sided tests (does it lie within the equivalence margin?),
both adjusted after Holm for the number of arms.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import comb, isfinite, sqrt
from statistics import mean, stdev
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from mlx_attn.errors import ConfigError, RunError

try:
    from scipy import optimize, special, stats
except ImportError as error:
    raise RunError("statistics need scipy: pip install 'mlx-attn[lab]'") from error

MOST_SEEDS = 1000
"""Where `required_seeds` stops looking."""

_POWER, _RESAMPLES, _NODES = 0.8, 10_000, 500
_MOST_SPLITS = 20_000  # above this number of splits, `log_rank` draws as many at random
_ROUNDING = 1e-9  # sums that differ by less are equal but for the order of their terms


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One arm's paired differences of loss, judged. Positive differences: the arm is worse.

    Every number is finite. One seed has no spread: then the word is "undecided", what would be
    infinite is None, the p-values are 1, and seeds_needed is 2, the fewest that can be judged.

    Attributes:
        word: "better", "worse", "equivalent" (within the margin) or "undecided".
        differences: The arm's loss minus the control's, seed by seed, in nats per token.
        interval: Student's t interval of the mean.
        bootstrap: Bootstrap-t interval of the mean.
        p_value: Two-sided t test of a mean of 0; `p_holm`: adjusted for the number of arms.
        p_equivalence: Two one-sided tests that the mean lies within the margin, adjusted likewise.
        resolves: The minimum detectable effect, in nats, with a power of 0.8.
        seeds_needed: Seeds that would decide with a power of 0.8, were this the true mean and
            spread; 1000 stands for 1000 or more; None where it is decided.
    """

    word: str
    differences: tuple[float, ...]
    mean: float
    interval: tuple[float, float] | None
    bootstrap: tuple[float, float] | None
    p_value: float
    p_holm: float
    p_equivalence: float
    resolves: float | None
    seeds_needed: int | None


class Sample(NamedTuple):
    """Size, mean and standard deviation (n - 1 degrees of freedom; 0 for one) of differences."""

    n: int
    mean: float
    sd: float

    @classmethod
    def of(cls, differences: Sequence[float]) -> "Sample":
        """Computed exactly, so that the order of the differences does not matter."""
        sd = stdev(differences) if len(differences) > 1 else 0.0
        return cls(len(differences), mean(differences), sd)

    @property
    def error(self) -> float:
        """The standard error of the mean, sd / sqrt(n)."""
        return self.sd / sqrt(self.n)


def judge(
    differences: Mapping[str, Sequence[float]], margin: float, confidence: float = 0.95
) -> dict[str, Verdict]:
    """Judge every arm; with a probability of at most 1 - confidence is any of them misjudged.

    Differences are an arm's loss minus the control's, seed by seed; those below the margin count as
    none. Both are in nats per token.
    """
    paired = {arm: tuple(map(float, found)) for arm, found in differences.items()}
    for arm, found in paired.items():
        if not found or not all(map(isfinite, found)):
            raise ConfigError(
                f"the differences of {arm} must be one finite number or more: got {list(found)}; "
                "leave out what diverged"
            )
    if not 0 <= margin < float("inf"):
        raise ConfigError(f"delta is in nats per token and not negative: got {margin}")
    if not 0.5 <= confidence < 1:
        raise ConfigError(f"confidence is from 0.5 to below 1, such as 0.95: got {confidence}")
    samples = {arm: Sample.of(found) for arm, found in paired.items()}
    return {
        arm: Verdict(
            **decision,
            **_of_spread(paired[arm], decision["word"], margin, confidence, len(samples)),
            differences=paired[arm],
            mean=samples[arm].mean,
        )
        for arm, decision in decide(samples, margin, confidence).items()
    }


def decide(
    samples: Mapping[str, Sample], margin: float, confidence: float
) -> dict[str, dict[str, Any]]:
    """Each arm's word and p-values; "equivalent" wins where a difference is also not zero."""
    p_values = {arm: 2 * _upper_tail(found, abs(found.mean)) for arm, found in samples.items()}
    # Of the two one-sided tests (Schuirmann, 1987) the nearer bound has the larger p-value.
    nearer = {arm: _upper_tail(found, margin - abs(found.mean)) for arm, found in samples.items()}
    different = holm(p_values)
    equivalent = holm({arm: p if samples[arm].n > 1 else 1.0 for arm, p in nearer.items()})
    decisions = {}
    for arm, found in samples.items():
        word = "undecided"
        if equivalent[arm] <= 1 - confidence:
            word = "equivalent"
        elif different[arm] <= 1 - confidence:
            word = "worse" if found.mean > 0 else "better"
        adjusted = {"p_holm": different[arm], "p_equivalence": equivalent[arm]}
        decisions[arm] = {"word": word, "p_value": p_values[arm], **adjusted}
    return decisions


def _of_spread(
    differences: Sequence[float], word: str, margin: float, confidence: float, arms: int
) -> dict[str, Any]:
    """The figures of a verdict that need the spread of two seeds."""
    found = Sample.of(differences)
    if found.n < 2:
        return {"interval": None, "bootstrap": None, "resolves": None, "seeds_needed": 2}
    spread = found.sd, found.mean, margin, confidence, arms
    return {
        "interval": student_interval(found, confidence),
        "bootstrap": bootstrap_interval(differences, confidence),
        "resolves": minimum_detectable_effect(found.sd, found.n, confidence, arms),
        "seeds_needed": required_seeds(*spread) if word == "undecided" else None,
    }


def _upper_tail(found: Sample, distance: float) -> float:
    """P(T >= distance / error), n - 1 degrees of freedom; without spread there is no doubt."""
    if found.n < 2:
        return 0.5
    if found.error == 0:
        return 0.5 - 0.5 * float(np.sign(distance))
    return float(special.stdtr(found.n - 1, -distance / found.error))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """P-values adjusted for their number (Holm, 1979): the family errs as seldom as one test."""
    names = sorted(p_values, key=lambda name: p_values[name])
    raised = [p_values[name] * (len(names) - place) for place, name in enumerate(names)]
    adjusted = dict(zip(names, np.minimum(np.maximum.accumulate(raised), 1).tolist(), strict=True))
    return {name: adjusted[name] for name in p_values}


def student_interval(found: Sample, confidence: float) -> tuple[float, float]:
    """Student's t interval of the mean; needs two seeds."""
    reach = float(special.stdtrit(found.n - 1, (1 + confidence) / 2)) * found.error
    return found.mean - reach, found.mean + reach


def bootstrap_interval(differences: Sequence[float], confidence: float) -> tuple[float, float]:
    """Smoothed bootstrap-t interval of the mean; the same numbers give the same interval.

    A resample draws x* = x_i + z sd / sqrt(n) with z standard normal, whose variance is that of the
    sample, and has t* = (mean* - mean) / sd*. The interval is mean - sd t*, between the outer
    quantiles of t*. It is wider than Student's where the sample is skewed, and lopsided.
    """
    found = Sample.of(differences)
    if found.sd == 0:
        return found.mean, found.mean
    chosen, noise = _resamples(found.n)
    drawn = (np.sort(differences)[chosen] - found.mean) / found.sd + noise
    t = drawn.mean(1) / drawn.std(1, ddof=1)
    low, high = np.quantile(t, [(1 - confidence) / 2, (1 + confidence) / 2])
    return found.mean - found.sd * float(high), found.mean - found.sd * float(low)


@lru_cache(maxsize=16)
def _resamples(n: int) -> tuple[Int64[np.ndarray, "R n"], Float64[np.ndarray, "R n"]]:
    """Ranks drawn from n sorted values, and the noise that smooths them.

    Each resample has its mirror image, so that swapping the arms mirrors the interval.
    """
    random = np.random.default_rng(n)
    chosen = random.integers(0, n, (_RESAMPLES // 2, n))
    noise = random.standard_normal((_RESAMPLES // 2, n)) / sqrt(n)
    return np.concatenate([chosen, n - 1 - chosen]), np.concatenate([noise, -noise])


def minimum_detectable_effect(sd: float, n: int, confidence: float = 0.95, arms: int = 1) -> float:
    """The smallest true difference that a paired two-sided t test of n seeds finds, in sd's unit.

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
    """The power of a two-sided t test, for an effect in standard deviations."""
    critical = special.stdtrit(n - 1, 1 - level / 2) * _observed_sds(n)
    shift = effect * sqrt(n)
    return float(np.mean(special.ndtr(shift - critical) + special.ndtr(-shift - critical)))


def power_of_equivalence(effect: float, margin: float, n: int, level: float) -> float:
    """The power of two one-sided tests that the effect is within the margin, likewise."""
    reach = margin * sqrt(n) - special.stdtrit(n - 1, 1 - level) * _observed_sds(n)
    shift = effect * sqrt(n)
    inside = special.ndtr(reach - shift) - special.ndtr(-reach - shift)
    return float(np.mean(np.maximum(inside, 0)))


@lru_cache(maxsize=256)
def _detectable(n: int, level: float) -> float:
    """The effect, in standard deviations, that a t test has a power of 0.8 for."""
    largest = (special.stdtrit(n - 1, 1 - level / 2) * _observed_sds(n)[-1] + 10) / sqrt(n)
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
