"""How a comparison is put into words and numbers for people."""

import math
from collections.abc import Iterable

from mlx_attn.compare.result import AATest, ArmResult, BudgetResult, Comparison
from mlx_attn.compare.statistics import Verdict
from mlx_attn.ui.terminal import plural

BUDGETS = {
    "steps": "equal steps",
    "seconds": "equal training time",
    "params": "equal parameters",
}
"""What a budget makes equal."""

MISSING = "-"

MOST_SEEDS = 1000
"""Stands for so many seeds or more."""


def budget_name(budget: BudgetResult) -> str:
    """What the budget makes equal."""
    return BUDGETS.get(budget.budget, f"equal {budget.budget}")


def places(delta: float) -> int:
    """Decimals that show a tenth of delta, three at least."""
    return max(3, 1 - math.floor(math.log10(delta))) if 0 < delta < 1 else 3


def number(value: float | None, decimals: int) -> str:
    """So many decimals and never -0; a dash where there is no number."""
    if value is None or math.isnan(value):
        return MISSING
    return f"{round(value, decimals) + 0.0:.{decimals}f}"


def signed(value: float | None, decimals: int) -> str:
    """The same with its sign."""
    text = number(value, decimals)
    return text if text == MISSING or text.startswith("-") else f"+{text}"


def between(interval: tuple[float, float] | None, decimals: int) -> str:
    """An interval from one end to the other; a dash where there is none.

    An end that would be rounded to zero gets up to three decimals more: what an interval says is on
    which side of zero it ends.
    """
    low, high = interval or (math.nan, math.nan)
    if not (math.isfinite(low) and math.isfinite(high)):
        return MISSING
    return " to ".join(signed(end, _beside_zero(end, decimals)) for end in (low, high))


def _beside_zero(value: float, decimals: int) -> int:
    enough = (n for n in range(decimals, decimals + 4) if round(value, n))
    return next(enough, decimals)


def probability(p: float | None) -> str:
    """A p value, in three decimals."""
    if p is None or math.isnan(p):
        return MISSING
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def percent(share: float | None) -> str:
    """A share of 1, as 97.3 %."""
    return MISSING if share is None or math.isnan(share) else f"{100 * share:.1f} %"


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of what is known; None where nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def spread(values: Iterable[float | None]) -> float | None:
    """The standard deviation of what is known (n - 1); None for fewer than two."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return None
    middle = sum(known) / len(known)
    return math.sqrt(sum((value - middle) ** 2 for value in known) / (len(known) - 1))


def values(arm: ArmResult, field: str) -> list[float | None]:
    """A field of an arm's trainings, seed by seed."""
    found = [getattr(training, field) for training in arm.trainings]
    return [None if value is None else float(value) for value in found]


def shown(text: str) -> str:
    """Text of any origin so that it can be seen: what is no character of a text, as its code."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def seeds_needed(verdict: Verdict) -> str:
    """How many seeds would decide; a dash where it is decided."""
    if verdict.seeds_needed is None:
        return MISSING
    return f"{verdict.seeds_needed}{' or more' if verdict.seeds_needed >= MOST_SEEDS else ''}"


def finding(arm: str, verdict: Verdict, comparison: Comparison) -> str:
    """The verdict of an arm with its numbers, as a sentence."""
    unit = "" if verdict.word == "equivalent" else " nats per token"
    numbers = _numbers(verdict, comparison, unit)
    return f"{_claim(arm, verdict, comparison)}: {numbers}{_more(verdict)}."


def noise_sentences(noise: AATest, comparison: Comparison) -> str:
    """What the A/A run says of this machine and of what is being measured."""
    decimals = places(comparison.delta)
    repeat = (
        "Two trainings with the same seed end with the same loss to the last bit"
        if noise.repeat_difference == 0
        else f"Two trainings with the same seed differ by up to {noise.repeat_difference:.2g} nats"
    )
    return (
        f"{repeat}. Between seeds the loss of {comparison.control} has a standard deviation of "
        f"{number(noise.seed_spread, decimals + 1)} nats. Against itself, with other seeds, "
        f"{comparison.control} is {noise.verdict.word}: {_numbers(noise.verdict, comparison)}."
    )


def _claim(arm: str, verdict: Verdict, comparison: Comparison) -> str:
    control = comparison.control
    if verdict.word == "equivalent":
        return f"{arm} is equivalent to {control} within {comparison.delta:g} nats per token"
    if verdict.word == "undecided":
        return f"{arm} against {control} is undecided"
    return f"{arm} is {verdict.word} than {control}"


def _numbers(verdict: Verdict, comparison: Comparison, unit: str = " nats per token") -> str:
    decimals = places(comparison.delta)
    seeds = plural(len(verdict.differences), "seed")
    interval = between(verdict.interval, decimals)
    mean = f"{signed(verdict.mean, decimals)}{unit}"
    if interval == MISSING:
        return f"{mean}, {seeds}, too few for an interval"
    return f"{mean}, {100 * comparison.confidence:g} % interval {interval}, {seeds}"


def _more(verdict: Verdict) -> str:
    if verdict.interval is None or verdict.seeds_needed is None:
        return ""
    return f"; about {seeds_needed(verdict)} seeds would decide"
