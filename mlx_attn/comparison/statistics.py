"""The correction for several tests, and how often and how soon trainings solve a task."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import comb
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64
from scipy import stats

from mlx_attn.errors import ConfigError

_MOST_SPLITS = 20_000  # above this number of splits, `log_rank` draws as many at random
_ROUNDING = 1e-9  # sums that differ by less are equal but for the order of their terms


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Adjust p-values for their number, so that all together err as rarely as one (Holm, 1979)."""
    names = sorted(p_values, key=lambda name: p_values[name])
    # The smallest of m p-values is multiplied by m, the next by m - 1, ..., the largest by 1.
    raised = [p_values[name] * (len(names) - place) for place, name in enumerate(names)]
    # Never below the adjusted value of a smaller p-value, and at most 1.
    adjusted = dict(zip(names, np.minimum(np.maximum.accumulate(raised), 1).tolist(), strict=True))
    return {name: adjusted[name] for name in p_values}


class TimeToSolve(NamedTuple):
    """Steps until a training solved its task; all its steps, censored, if it never did."""

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
    """Summarize one or more trainings on a task."""
    if not times:
        raise ConfigError("a solve rate needs at least one training: got none")
    # A training that never solved it is censored: it would have needed more steps than these.
    solved = [time.steps for time in times if time.solved]
    censored = [time.steps for time in times if not time.solved]
    runs, median = len(times), None
    interval = stats.binomtest(len(solved), runs).proportion_ci(confidence, method="exact")
    if solved:
        unsolved = stats.ecdf(stats.CensoredData(uncensored=solved, right=censored)).sf
        # The first step at which at most half of all trainings are unsolved.
        half = unsolved.quantiles[unsolved.probabilities <= 0.5 + _ROUNDING]
        median = float(half[0]) if half.size else None
    ends = float(interval.low), float(interval.high)
    return SolveRate(len(solved), runs, len(solved) / runs, ends, median)


def log_rank(first: Sequence[TimeToSolve], second: Sequence[TimeToSolve]) -> float:
    """Return the two-sided p-value of the log-rank test for equally soon and often solved tasks.

    By permutation, right for few trainings too, as `scipy.stats.logrank` is not: over all splits of
    the trainings into arms of these sizes, or _MOST_SPLITS random ones, the same in every call.
    """
    if not first or not second:
        raise ConfigError("a log-rank test needs a training of each arm at least: got none of one")
    # The statistic is the sum of one arm's scores; under no difference all splits are as likely.
    scores = _log_rank_scores([*first, *second])
    runs, size = len(scores), len(first)
    if comb(runs, size) <= _MOST_SPLITS:
        splits = np.array(list(combinations(range(runs), size)))  # the first one is the observed
    else:
        splits = np.tile(np.arange(runs), (_MOST_SPLITS, 1))
        splits[1:] = np.random.default_rng(0).permuted(splits[1:], axis=1)
    # [splits, size] -> [splits]; the observed split is the first.
    sums = np.abs(scores[splits[:, :size]].sum(1))
    return float(np.mean(sums >= sums[0] - _ROUNDING))


def log_rank_excess(first: Sequence[TimeToSolve], second: Sequence[TimeToSolve]) -> float:
    """Return the first arm's solved trainings beyond those expected; above 0 it is sooner."""
    return float(_log_rank_scores([*first, *second])[: len(first)].sum())


def _log_rank_scores(times: Sequence[TimeToSolve]) -> Float64[np.ndarray, "N"]:
    """Return 1 if solved, minus the cumulative hazard of all trainings (Nelson and Aalen)."""
    steps = np.array([time.steps for time in times])
    solved = np.array([time.solved for time in times], dtype=float)
    # 1 / the number at risk at that step: trainings that were unsolved until then.
    hazards = solved / (steps[:, None] <= steps).sum(1)
    # [N, N] -> [N]: the hazards of all steps up to a training's own.
    return solved - (hazards * (steps <= steps[:, None])).sum(1)
