"""How often and how soon trainings solve a task, which decides in place of the mean loss.

Losses of a task have two peaks: their mean mostly counts the trainings that solved it in time. An
arm is compared with the control by the log-rank test of the steps until a training predicts
`SOLVED` of the tokens right, by permutation; trainings that never did count with all their steps.
The p-values are corrected (Holm) for all arms, and for several looks (Bonferroni).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import comb
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64
from scipy import stats

from mlx_attn.comparison.t_tests import holm

SOLVED = 0.99
"""The share of the scored tokens predicted right from which a task counts as solved."""

_MOST_SPLITS = 20_000  # above this number of splits, `log_rank` draws as many at random
_ROUNDING = 1e-9  # sums that differ by less are equal but for the order of their terms


class TimeToSolve(NamedTuple):
    """Steps until a training solved its task; all its steps, censored, if it never did."""

    steps: int
    solved: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Solving:
    """How often and how soon an arm solves a task.

    Attributes:
        solved: Of its trainings, `runs` in all; the interval of the rate is Clopper and Pearson's.
        median_steps: Kaplan and Meier's; None if fewer than half of all trainings would solve it.
        word: "better" if it is solved sooner or more often than by the control, "worse" if later or
            less often, or "undecided"; "" for the control.
        p_holm: Of the log-rank test against the control, adjusted; None for the control.
    """

    solved: int
    runs: int
    interval: tuple[float, float]
    median_steps: float | None
    word: str = ""
    p_holm: float | None = None


def judge_solving(
    times: Mapping[str, Sequence[TimeToSolve]], confidence: float, looks: int = 1
) -> dict[str, Solving]:
    """Judge all arms against the first one.

    Args:
        times: Steps until solved, of one or more trainings, by arm, the control first.
        confidence: Of all words together.
        looks: Number of times that the trainings are judged.
    """
    (control, of_control), *others = times.items()
    p_values = holm({arm: log_rank(of_arm, of_control) for arm, of_arm in others})
    judged = {control: solve_rate(of_control, confidence)}
    for arm, of_arm in others:
        # Bonferroni over the looks, because the test itself is for a single look.
        is_shown = p_values[arm] <= (1 - confidence) / looks
        # The test is two-sided; the sign of the sum of scores shows the direction.
        scores = _log_rank_scores([*of_arm, *of_control])[: len(of_arm)]
        word = ("better" if scores.sum() > 0 else "worse") if is_shown else "undecided"
        judged[arm] = replace(solve_rate(of_arm, confidence), word=word, p_holm=p_values[arm])
    return judged


def solve_rate(times: Sequence[TimeToSolve], confidence: float = 0.95) -> Solving:
    """Summarize one or more trainings on a task."""
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
    return Solving(solved=len(solved), runs=runs, interval=ends, median_steps=median)


def log_rank(first: Sequence[TimeToSolve], second: Sequence[TimeToSolve]) -> float:
    """Return the two-sided p-value of the log-rank test for equally soon and often solved tasks.

    By permutation, right for few trainings too, as `scipy.stats.logrank` is not: over all splits of
    the trainings into arms of these sizes, or _MOST_SPLITS random ones, the same in every call.
    """
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


def _log_rank_scores(times: Sequence[TimeToSolve]) -> Float64[np.ndarray, "N"]:
    """Return 1 if solved, minus the cumulative hazard of all trainings (Nelson and Aalen)."""
    steps = np.array([time.steps for time in times])
    solved = np.array([time.solved for time in times], dtype=float)
    # 1 / the number at risk at that step: trainings that were unsolved until then.
    hazards = solved / (steps[:, None] <= steps).sum(1)
    # [N, N] -> [N]: the hazards of all steps up to a training's own.
    return solved - (hazards * (steps <= steps[:, None])).sum(1)
