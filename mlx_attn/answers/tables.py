"""The tables of a study's page in Markdown: its findings, and its learning-rate searches."""

from collections.abc import Sequence
from math import exp, expm1
from statistics import stdev
from typing import Any

from mlx_attn.answers import findings
from mlx_attn.answers.findings import Finding
from mlx_attn.answers.schedule import ArmPlan, Records, arm_plans
from mlx_attn.answers.study import STANDARD, STEPS, Contrast, Study

DONE = "{} of {} runs"
_COLUMNS = (
    *("contrast", "world", "control", "arm", "difference, 95 %", "p: no difference"),
    *("p: outside the margin", "word", "other test", "of the part", "tokens"),
)


def contrasts(found: Sequence[Finding]) -> str:
    """Return contrasts with their numbers, one row per world."""
    return table(_COLUMNS, [[name_of(f.contrast), f.world, *_numbers(f)] for f in found])


def worlds(study: Study, records: Records, found: Sequence[Finding]) -> str:
    """Return the worlds, with the margin in tokens and the worth of queries and keys."""
    head = (
        *("world", "text, positions, block, optimizer", "margin", "that is in tokens"),
        "queries and keys are worth",
    )
    rows: list[list[str]] = []
    for name, world in study.worlds.items():
        worths = {
            f.worth
            for f in found
            if f.verdict and f.world == name and f.contrast.reference == "scores-off"
        }
        worth = f"{worths.pop():.3f} nats" if worths else "not finished"
        tokens = margin_in_tokens(study, records, name) or "not finished"
        rows.append([name, world.summary, f"{world.margin:g}", tokens, worth])
    return table(head, rows)


def margin_in_tokens(study: Study, records: Records, world: str) -> str:
    """Return the share of its tokens that the control can drop for a loss of one margin.

    Return "" if the worth of tokens is not measured.
    """
    slope = findings.token_worth(study, records, world)
    return f"{-expm1(-study.world(world).margin / slope):.0%}" if slope and slope > 0 else ""


def abilities(study: Study, records: Records, found: Sequence[Finding]) -> str:
    """Return the differences by ability; "" if no finished contrast has any."""
    by_ability = [
        (f, findings.by_ability(study, records, f.contrast, f.world)) for f in found if f.verdict
    ]
    measured = [(f, losses) for f, losses in by_ability if losses]
    if not measured:
        return ""
    names = [*measured[0][1]]
    rows = [
        [name_of(f.contrast), f.world, *(f"{losses[name]:+.3f}" for name in names)]
        for f, losses in measured
    ]
    return table(("contrast", "world", *names), rows)


def rates(study: Study, records: Records) -> str:
    """Return the learning-rate factor of every arm, and the spread of its losses over seeds."""
    plans = {(p.world, p.arm): p for p in arm_plans(study, records)}
    rows: list[list[str]] = []
    for arm in dict.fromkeys(arm for _, arm in plans):
        asked = [plans.get((world, arm)) for world in study.worlds]
        if any(cells := [_rate(plan) if plan else "" for plan in asked]):
            rows.append([arm, *cells])
    return table(("arm", *study.worlds), rows)


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table in Markdown."""
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def _numbers(found: Finding) -> list[str]:
    """Return the cells of a contrast after its name and world."""
    if found.verdict is None or found.losses is None:
        unfinished = f"{found.answer}, {DONE.format(*found.done)}"
        return ["", "", unfinished, *[""] * (len(_COLUMNS) - 5)]
    control, _, arm = (_level(found, mean) for mean in found.losses)
    levels = zip((control, arm), found.unsolved, strict=True)
    return [
        *(level + (f", {unsolved} unsolved" if unsolved else "") for level, unsolved in levels),
        difference(found, 4),
        f"{found.verdict.p_holm:.2g}",
        f"{found.verdict.p_equivalence:.2g}",
        found.said,
        found.verdict.other_word,
        "" if found.verdict.share is None else f"{found.verdict.share:+.0%} of {found.worth:.3f}",
        "" if found.tokens is None else f"{found.tokens:+.0%}",
    ]


def _level(found: Finding, mean: float) -> str:
    """Return the mean of an arm, of steps the geometric one."""
    return f"{exp(mean):.0f} steps" if found.contrast.outcome == STEPS else f"{mean:.4f}"


def difference(found: Finding, decimals: int) -> str:
    """Return the mean difference with its interval; of steps, the ratio."""
    assert found.verdict is not None
    mean = mean_difference(found, decimals)
    if found.verdict.interval is None:
        return f"{mean} (one seed)"
    low, high = (_difference(found, end, decimals) for end in found.verdict.interval)
    return f"{mean} ({low} to {high})"


def mean_difference(found: Finding, decimals: int) -> str:
    """Return the mean difference; of steps, the ratio."""
    assert found.verdict is not None
    return _difference(found, found.verdict.mean, decimals)


def _difference(found: Finding, value: float, decimals: int) -> str:
    steps = found.contrast.outcome == STEPS
    return f"x {exp(value):.2f}" if steps else f"{value:+.{decimals}f}"


def name_of(contrast: Contrast) -> str:
    """Return the arm's name, with its control and outcome unless they are the usual ones."""
    control = contrast.control
    name = contrast.arm if control == STANDARD else f"{contrast.arm} to {control}"
    return f"{name}, {contrast.outcome}" if contrast.outcome else name


def _rate(plan: ArmPlan) -> str:
    search, losses = plan.search, plan.losses()
    if search.best is None:
        return ""
    edge = "" if search.interior or plan.study.arms[plan.arm].rates_of else " (at the edge)"
    spread = f", sd {stdev(losses):.4f}" if losses else ""
    return f"x {search.best:g}{edge}{spread}"
