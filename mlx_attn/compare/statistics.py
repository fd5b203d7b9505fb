"""The four words that a comparison ends with, and the numbers behind them."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import comb, isfinite, sqrt
from statistics import mean, stdev

import numpy as np
from jaxtyping import Float64, Int64

from mlx_attn.errors import ConfigError, RunError


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What paired differences of loss say of an arm. Positive differences: the arm is worse.

    Every number is finite. One seed has no spread: then the word is "undecided", what would be
    infinite is None, the p-values are 1, and seeds_needed is 2, the fewest that can be judged.

    Attributes:
        word: "better", "worse", "equivalent" (within delta) or "undecided".
        differences: The arm's loss less the control's, seed by seed, in nats per token.
        mean: Their mean.
        interval: Student's t interval of the mean; None of one seed.
        bootstrap: Bootstrap interval of the mean; None of one seed.
        p_value: Two-sided t test of a mean of 0.
        p_holm: The same, adjusted for the number of arms after Holm.
        p_equivalence: Two one-sided tests that the mean lies within delta, adjusted likewise.
        resolves: The smallest true difference, in nats, that as many seeds with this spread would
            find four times out of five; None of one seed.
        seeds_needed: Seeds that would decide four times out of five, were this the true mean and
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


try:
    from scipy import optimize, special, stats
except ImportError as error:
    raise RunError("statistics need scipy: pip install 'mlx-attn[lab]'") from error


@dataclass(frozen=True, slots=True)
class Sample:
    """Paired differences, summed up.

    Attributes:
        size: How many.
        mean: In the unit of the differences.
        spread: Their standard deviation with n - 1 degrees of freedom; 0 of one.
    """

    size: int
    mean: float
    spread: float

    @property
    def error(self) -> float:
        """The standard error of the mean, spread / sqrt(n)."""
        return self.spread / sqrt(self.size)


@dataclass(frozen=True, slots=True)
class Decision:
    """A word and the p-values that it follows from; those with Holm's adjustment as marked.

    Attributes:
        word: "better", "worse", "equivalent" or "undecided".
        p_value: Two-sided t test of a mean of 0, alone.
        p_holm: The same, adjusted.
        p_equivalence: Two one-sided tests that the mean lies within delta, adjusted.
    """

    word: str
    p_value: float
    p_holm: float
    p_equivalence: float


def sample(differences: Sequence[float]) -> Sample:
    """The summary of at least one difference, rounded once: their order does not matter."""
    spread = stdev(differences) if len(differences) > 1 else 0.0
    return Sample(len(differences), mean(differences), spread)


def decide(samples: Mapping[str, Sample], delta: float, confidence: float) -> dict[str, Decision]:
    """The word on every arm.

    Equivalence comes first: a difference that is proved to be smaller than delta is too small to
    matter, even where it is proved not to be zero. Each of the two families of tests errs about any
    of its arms with a probability of at most 1 - confidence.

    Args:
        samples: What is known of each arm.
        delta: Differences smaller than this count as none.
        confidence: Such as 0.95.
    """
    alone = {arm: difference_p(found) for arm, found in samples.items()}
    different = holm(alone)
    equivalent = holm({arm: equivalence_p(found, delta) for arm, found in samples.items()})
    level = 1 - confidence
    return {
        arm: Decision(
            word=_word(found.mean, different[arm] <= level, equivalent[arm] <= level),
            p_value=alone[arm],
            p_holm=different[arm],
            p_equivalence=equivalent[arm],
        )
        for arm, found in samples.items()
    }


def difference_p(found: Sample) -> float:
    """Two-sided paired t test of a mean of 0: P(|T| >= |mean| / error) with n - 1 degrees."""
    return 2 * _beyond(found, abs(found.mean))


def equivalence_p(found: Sample, delta: float) -> float:
    """Two one-sided tests (Schuirmann, 1987): the larger p-value of mean > -delta, mean < delta.

    P(T >= (delta - |mean|) / error), because the bound that is nearer decides.
    """
    return _beyond(found, delta - abs(found.mean)) if found.size > 1 else 1.0


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """P-values adjusted for their number (Holm, 1979): families err as seldom as a single test.

    The i-th smallest of m becomes the largest of (m - j + 1) p_j over j <= i, at most 1.
    """
    names = sorted(p_values, key=lambda name: p_values[name])
    raised = [p_values[name] * (len(names) - place) for place, name in enumerate(names)]
    adjusted = dict(zip(names, np.minimum(np.maximum.accumulate(raised), 1).tolist(), strict=True))
    return {name: adjusted[name] for name in p_values}


def _word(mean_difference: float, different: bool, equivalent: bool) -> str:
    if equivalent:
        return "equivalent"
    if different:
        return "worse" if mean_difference > 0 else "better"
    return "undecided"


def _beyond(found: Sample, distance: float) -> float:
    """P(T >= distance / error); differences without any spread leave no doubt about it."""
    if found.size < 2:
        return 0.5
    if found.error == 0:
        return 0.5 - 0.5 * float(np.sign(distance))
    return float(special.stdtr(found.size - 1, -distance / found.error))


RESAMPLES = 10_000


def student_interval(found: Sample, confidence: float) -> tuple[float, float]:
    """Student's t interval: mean -+ t error, with n - 1 degrees of freedom; needs two seeds."""
    reach = float(special.stdtrit(found.size - 1, (1 + confidence) / 2)) * found.error
    return found.mean - reach, found.mean + reach


def bootstrap_interval(differences: Sequence[float], confidence: float) -> tuple[float, float]:
    """Smoothed bootstrap-t interval of the mean; the same numbers give the same interval.

    A resample draws x* = x_i + z spread / sqrt(n) with z standard normal, whose variance is that of
    the sample, and has t* = (mean* - mean) / spread*. The interval is mean - spread t*, between the
    outer quantiles of t*. It is wider than Student's where the sample is skewed, and lopsided.

    Args:
        differences: At least two.
        confidence: Such as 0.95.
    """
    found = sample(differences)
    if found.spread == 0:
        return found.mean, found.mean
    chosen, noise = _resamples(found.size)
    drawn = (np.sort(differences)[chosen] - found.mean) / found.spread + noise
    t = drawn.mean(1) / drawn.std(1, ddof=1)
    low, high = np.quantile(t, [(1 - confidence) / 2, (1 + confidence) / 2])
    return found.mean - found.spread * float(high), found.mean - found.spread * float(low)


@lru_cache(maxsize=16)
def _resamples(n: int) -> tuple[Int64[np.ndarray, "R n"], Float64[np.ndarray, "R n"]]:
    """Ranks drawn from n sorted values, and what smooths them.

    Each resample has its mirror image, so that swapping the arms mirrors the interval.
    """
    random = np.random.default_rng(n)
    chosen = random.integers(0, n, (RESAMPLES // 2, n))
    noise = random.standard_normal((RESAMPLES // 2, n)) / sqrt(n)
    return np.concatenate([chosen, n - 1 - chosen]), np.concatenate([noise, -noise])


MOST_SEEDS = 1000
"""Where `required_seeds` stops looking."""

_NODES = 500


def minimum_detectable_effect(
    sd: float, n: int, confidence: float = 0.95, power: float = 0.8, arms: int = 1
) -> float:
    """The smallest true difference that a paired two-sided t test finds, in the unit of sd.

    Args:
        sd: The standard deviation of the paired differences.
        n: Seeds.
        confidence: Of the verdict.
        power: How often such a difference is to be found.
        arms: How many arms are judged together; Holm's strictest level is (1 - confidence) / arms.

    Raises:
        ConfigError: n is less than 2, or confidence or power is no probability that can be asked.
    """
    if n < 2:
        raise ConfigError(f"a spread needs at least 2 seeds: got {n}")
    return sd * _effect(n, _level(confidence, power, arms), power)


def required_seeds(
    sd: float,
    difference: float,
    delta: float = 0.0,
    confidence: float = 0.95,
    power: float = 0.8,
    arms: int = 1,
) -> int:
    """The fewest seeds that decide: a difference is found, or proved to be smaller than delta.

    Args:
        sd: The standard deviation of the paired differences.
        difference: The true difference, in the unit of sd.
        delta: Differences smaller than this count as none.
        confidence: Of the verdict.
        power: How often the verdict is to be found.
        arms: How many arms are judged together.

    Returns:
        From 2 to MOST_SEEDS, which stands for as many or more.

    Raises:
        ConfigError: confidence or power is no probability that can be asked.
    """
    level = _level(confidence, power, arms)
    if sd == 0:
        return 2 if difference or delta else MOST_SEEDS

    def chance(n: int) -> float:
        found = power_of_difference(difference / sd, n, level)
        return max(found, power_of_equivalence(difference / sd, delta / sd, n, level))

    return 2 + bisect_left(range(2, MOST_SEEDS), power, key=chance)


def power_of_difference(effect: float, n: int, level: float) -> float:
    """How often a two-sided t test of that level finds a difference of so many deviations."""
    critical = special.stdtrit(n - 1, 1 - level / 2) * _spreads(n)
    shift = effect * sqrt(n)
    return float(np.mean(special.ndtr(shift - critical) + special.ndtr(-shift - critical)))


def power_of_equivalence(effect: float, margin: float, n: int, level: float) -> float:
    """How often two one-sided tests prove such a difference smaller than the margin, likewise."""
    reach = margin * sqrt(n) - special.stdtrit(n - 1, 1 - level) * _spreads(n)
    shift = effect * sqrt(n)
    inside = special.ndtr(reach - shift) - special.ndtr(-reach - shift)
    return float(np.mean(np.maximum(inside, 0)))


@lru_cache(maxsize=256)
def _effect(n: int, level: float, power: float) -> float:
    """The difference, in standard deviations, that is found with that power."""
    largest = (special.stdtrit(n - 1, 1 - level / 2) * _spreads(n)[-1] + 10) / sqrt(n)
    found = optimize.root_scalar(
        lambda effect: power_of_difference(effect, n, level) - power, bracket=(0, largest)
    )
    return float(found.root)


@lru_cache(maxsize=256)
def _spreads(n: int) -> Float64[np.ndarray, "nodes"]:
    """Equally likely observed spreads of n differences whose true spread is 1: sqrt(chi2 / df)."""
    likelihoods = (np.arange(_NODES) + 0.5) / _NODES
    return np.sqrt(2 * special.gammaincinv((n - 1) / 2, likelihoods) / (n - 1))


def _level(confidence: float, power: float, arms: int) -> float:
    if not 0 < 1 - confidence < power < 1:
        raise ConfigError(
            "confidence and power lie between 0 and 1, power above 1 - confidence: "
            f"got {confidence} and {power}"
        )
    return (1 - confidence) / arms


def judge(
    differences: Mapping[str, Sequence[float]], delta: float, confidence: float = 0.95
) -> dict[str, Verdict]:
    """Every arm's verdict; the arms share one probability of error, after Holm.

    "equivalent" where the difference is proved to be smaller than delta, even if it is not zero;
    else "better" or "worse" where it is proved not to be zero; else "undecided".

    Args:
        differences: For each arm its loss less the control's, seed by seed, in nats per token.
        delta: Differences smaller than this, in nats per token, count as none; 0: nothing does.
        confidence: Of the intervals and the words, such as 0.95.

    Raises:
        ConfigError: An arm has no differences, or one that is not finite; delta is negative;
            confidence is not from 0.5 to 1.
    """
    paired = {arm: tuple(map(float, found)) for arm, found in differences.items()}
    _check(paired, delta, confidence)
    samples = {arm: sample(found) for arm, found in paired.items()}
    decisions = decide(samples, delta, confidence)

    def verdict(arm: str) -> Verdict:
        found, decision, arms = samples[arm], decisions[arm], len(samples)
        spread_known = found.size > 1
        return Verdict(
            word=decision.word,
            differences=paired[arm],
            mean=found.mean,
            interval=student_interval(found, confidence) if spread_known else None,
            bootstrap=bootstrap_interval(paired[arm], confidence) if spread_known else None,
            p_value=decision.p_value,
            p_holm=decision.p_holm,
            p_equivalence=decision.p_equivalence,
            resolves=_resolves(found, confidence, arms) if spread_known else None,
            seeds_needed=_seeds_needed(found, decision, delta, confidence, arms),
        )

    return {arm: verdict(arm) for arm in paired}


def _resolves(found: Sample, confidence: float, arms: int) -> float:
    return minimum_detectable_effect(found.spread, found.size, confidence, arms=arms)


def _seeds_needed(
    found: Sample, decision: Decision, delta: float, confidence: float, arms: int
) -> int | None:
    if decision.word != "undecided":
        return None
    if found.size < 2:
        return 2
    return required_seeds(found.spread, found.mean, delta, confidence, arms=arms)


def _check(paired: Mapping[str, Sequence[float]], delta: float, confidence: float) -> None:
    for arm, found in paired.items():
        if not found or not all(map(isfinite, found)):
            raise ConfigError(
                f"the differences of {arm} must be one finite number or more: got {list(found)}; "
                "leave out what diverged"
            )
    if not 0 <= delta < float("inf"):
        raise ConfigError(f"delta is in nats per token and not negative: got {delta}")
    if not 0.5 <= confidence < 1:
        raise ConfigError(f"confidence is from 0.5 to below 1, such as 0.95: got {confidence}")


MOST_SPLITS = 20_000
"""Where `log_rank` draws splits of the trainings instead of taking all of them."""

_ROUNDING = 1e-9
"""Sums that differ by less are equal but for the order of their terms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeToSolve:
    """One training on a task.

    Attributes:
        steps: Until the threshold was reached; all steps trained where it never was.
        solved: Whether it was reached.
    """

    steps: int
    solved: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveRate:
    """How often and how soon an arm solves a task.

    Attributes:
        solved: Trainings that reached the threshold.
        runs: All trainings.
        rate: solved / runs.
        interval: Of the rate, after Clopper and Pearson: holds the true rate at least as often as
            asked, also with few trainings and rates near 0 or 1.
        median_steps: Steps within which half of all trainings would solve the task, after Kaplan
            and Meier; None where fewer did.
    """

    solved: int
    runs: int
    rate: float
    interval: tuple[float, float]
    median_steps: float | None


def solve_rate(attempts: Sequence[TimeToSolve], confidence: float = 0.95) -> SolveRate:
    """The summary of an arm's trainings on a task.

    Raises:
        ConfigError: There are none.
    """
    if not attempts:
        raise ConfigError("a solve rate needs at least one training: got none")
    solved = sum(attempt.solved for attempt in attempts)
    interval = stats.binomtest(solved, len(attempts)).proportion_ci(confidence, method="exact")
    return SolveRate(
        solved=solved,
        runs=len(attempts),
        rate=solved / len(attempts),
        interval=(float(interval.low), float(interval.high)),
        median_steps=_median(attempts),
    )


def log_rank(first: Sequence[TimeToSolve], second: Sequence[TimeToSolve]) -> float:
    """P-value of the log-rank test that two arms solve a task alike soon and often, two-sided.

    The statistic is the first arm's solved trainings less those expected of it (Peto and Peto,
    1972). Its law is that of all splits of the trainings into two arms of these sizes, so that the
    p-value is right for few trainings; above MOST_SPLITS splits, so many are drawn (with the same
    result each time). Several arms against one control: adjust with `holm`.

    Raises:
        ConfigError: An arm has no trainings.
    """
    if not first or not second:
        raise ConfigError("a log-rank test needs a training of each arm at least: got none of one")
    scores = _scores([*first, *second])
    sums = np.abs(scores[_splits(len(scores), len(first))].sum(1))
    return float(np.mean(sums >= sums[0] - _ROUNDING))


def _splits(runs: int, first: int) -> Int64[np.ndarray, "splits first"]:
    """Which runs are the first arm's: as they are, then in every other way or in many ways."""
    if comb(runs, first) <= MOST_SPLITS:
        return np.array(list(combinations(range(runs), first)))
    drawn = np.random.default_rng(0).permuted(np.tile(np.arange(runs), (MOST_SPLITS, 1)), axis=1)
    drawn[0] = np.arange(runs)
    return drawn[:, :first]


def _median(attempts: Sequence[TimeToSolve]) -> float | None:
    solved = [attempt.steps for attempt in attempts if attempt.solved]
    if not solved:
        return None
    failed = [attempt.steps for attempt in attempts if not attempt.solved]
    left = stats.ecdf(stats.CensoredData(uncensored=solved, right=failed)).sf
    half = left.quantiles[left.probabilities <= 0.5 + _ROUNDING]
    return float(half[0]) if half.size else None


def _scores(attempts: Sequence[TimeToSolve]) -> Float64[np.ndarray, "N"]:
    """Of each training: 1 if solved, less the hazard so far of all together (Nelson and Aalen)."""
    steps = np.array([attempt.steps for attempt in attempts])
    solved = np.array([attempt.solved for attempt in attempts], dtype=float)
    hazards = solved / (steps[:, None] <= steps).sum(1)
    return solved - (hazards * (steps <= steps[:, None])).sum(1)
