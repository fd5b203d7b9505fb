"""Tasks that are solved all of a sudden or not at all: how often, how soon, and is one arm sooner.

Losses of such tasks have two peaks and their means say little. What is compared instead is the
number of steps until a threshold is reached; a training that ended before reaching it says only
that more steps are needed (it is censored).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np
from jaxtyping import Float64, Int64

from mlx_attn.errors import ConfigError
from mlx_attn.lab.statistics.scientific import stats

MOST_SPLITS = 20_000
"""Where `log_rank` draws splits of the trainings instead of taking all of them."""

_ROUNDING = 1e-9
"""Sums that differ by less are equal but for the order of their terms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
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


def solve_rate(attempts: Sequence[Attempt], confidence: float = 0.95) -> SolveRate:
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


def log_rank(first: Sequence[Attempt], second: Sequence[Attempt]) -> float:
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


def _median(attempts: Sequence[Attempt]) -> float | None:
    solved = [attempt.steps for attempt in attempts if attempt.solved]
    if not solved:
        return None
    failed = [attempt.steps for attempt in attempts if not attempt.solved]
    left = stats.ecdf(stats.CensoredData(uncensored=solved, right=failed)).sf
    half = left.quantiles[left.probabilities <= 0.5 + _ROUNDING]
    return float(half[0]) if half.size else None


def _scores(attempts: Sequence[Attempt]) -> Float64[np.ndarray, "N"]:
    """Of each training: 1 if solved, less the hazard so far of all together (Nelson and Aalen)."""
    steps = np.array([attempt.steps for attempt in attempts])
    solved = np.array([attempt.solved for attempt in attempts], dtype=float)
    hazards = solved / (steps[:, None] <= steps).sum(1)
    return solved - (hazards * (steps <= steps[:, None])).sum(1)
