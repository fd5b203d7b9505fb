"""How often and how soon the arms solve a task, which mean losses say little of."""

from mlx_attn.lab.compare.result import ArmResult, BudgetResult, Comparison, Training
from mlx_attn.lab.statistics import Attempt, holm, log_rank, solve_rate
from mlx_attn.show.report.content import Section, Table
from mlx_attn.show.report.words import MISSING, percent, probability

SOLVED = 0.99
"""Share of the scored tokens predicted right from which a task counts as solved."""


def solving_section(budget: BudgetResult, comparison: Comparison) -> Section:
    """A row per arm; empty where no accuracy was measured."""
    attempts = {arm.arm: _attempts(arm) for arm in budget.arms}
    if not all(attempts.values()):
        return Section("Solved", ())
    later = {arm: tried for arm, tried in attempts.items() if arm != comparison.control}
    control = attempts[budget.arms[0].arm]
    p_values = holm({arm: log_rank(tried, control) for arm, tried in later.items()})
    table = Table(
        caption=f"Seeds that predicted {SOLVED:.0%} of the tokens right, and how soon; log-rank "
        f"test against {comparison.control}",
        headings=(
            "arm",
            "solved",
            f"{100 * comparison.confidence:g} % interval",
            "median steps",
            "Holm p",
        ),
        rows=tuple(
            _row(arm, tried, comparison.confidence, p_values.get(arm))
            for arm, tried in attempts.items()
        ),
    )
    return Section("Solved", (table,))


def _attempts(arm: ArmResult) -> list[Attempt]:
    """When each seed solved the task; none where a seed has no accuracy."""
    curves = [[p for p in training.curve if p.accuracy is not None] for training in arm.trainings]
    return [_attempt(training) for training in arm.trainings] if all(curves) else []


def _attempt(training: Training) -> Attempt:
    right = [p.step for p in training.curve if p.accuracy is not None and p.accuracy >= SOLVED]
    return Attempt(steps=min(right, default=training.steps), solved=bool(right))


def _row(
    arm: str, attempts: list[Attempt], confidence: float, p_value: float | None
) -> tuple[str, ...]:
    rate = solve_rate(attempts, confidence)
    low, high = rate.interval
    steps = MISSING if rate.median_steps is None else f"{rate.median_steps:,.0f}"
    interval = f"{percent(low)} to {percent(high)}"
    return (arm, f"{rate.solved} of {rate.runs}", interval, steps, probability(p_value))
