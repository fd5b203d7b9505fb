"""How often and how soon trainings solve a task, which decides in place of the mean loss.

Losses of a task have two peaks: their mean mostly counts the trainings that solved it in time. An
arm is compared with the control by the log-rank test of the steps until a training predicts
`SOLVED` of the tokens right, by permutation; trainings that never did count with all their steps.
The p-values are corrected (Holm) for all arms, and for several looks (Bonferroni).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mlx_attn.comparison.statistics import (
    SolveRate,
    TimeToSolve,
    holm,
    log_rank,
    log_rank_excess,
    solve_rate,
)

SOLVED = 0.99
"""The share of the scored tokens predicted right from which a task counts as solved."""


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
        times: Steps until solved, by arm, the control first.
        confidence: Of all words together.
        looks: Number of times that the trainings are judged.
    """
    (control, of_control), *others = times.items()
    p_values = holm({arm: log_rank(of_arm, of_control) for arm, of_arm in others})
    judged = {control: _solving(solve_rate(of_control, confidence))}
    for arm, of_arm in others:
        # Bonferroni over the looks, because the test itself is for a single look.
        is_shown = p_values[arm] <= (1 - confidence) / looks
        # The test is two-sided; the sign of the scores shows the direction.
        is_sooner = log_rank_excess(of_arm, of_control) > 0
        word = ("better" if is_sooner else "worse") if is_shown else "undecided"
        judged[arm] = _solving(solve_rate(of_arm, confidence), word, p_values[arm])
    return judged


def _solving(rate: SolveRate, word: str = "", p_holm: float | None = None) -> Solving:
    return Solving(
        solved=rate.solved,
        runs=rate.runs,
        interval=rate.interval,
        median_steps=rate.median_steps,
        word=word,
        p_holm=p_holm,
    )
