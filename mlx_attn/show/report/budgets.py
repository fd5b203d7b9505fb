"""The results under one budget: figures, and the numbers that they show."""

from collections.abc import Callable, Iterator

import numpy as np

from mlx_attn.lab.compare.result import ArmResult, BudgetResult, Comparison
from mlx_attn.show.quantities import count, duration, memory
from mlx_attn.show.report.content import Block, Plot, Section, Table
from mlx_attn.show.report.figures import (
    abilities,
    abilities_figure,
    ability_values,
    accuracy_figure,
    cost,
    costs_figure,
    curves_figure,
    place_of,
    ranks_figure,
)
from mlx_attn.show.report.forest import forest_figure
from mlx_attn.show.report.marks import Marks
from mlx_attn.show.report.series import Series, curves, rank_series
from mlx_attn.show.report.solving import solving_section
from mlx_attn.show.report.words import (
    MISSING,
    between,
    budget_name,
    mean,
    number,
    percent,
    places,
    probability,
    seeds_needed,
    signed,
    spread,
    values,
)

RANGE = "Lines are means over seeds, bands reach from the lowest seed to the highest."
_SHOWN = 9
"""Rows of a table about the course of a training."""


def budget_section(budget: BudgetResult, comparison: Comparison, marks: Marks) -> Section:
    """All that was measured under one budget."""
    refused = tuple(f"{arm} cannot be had: {why}" for arm, why in budget.refused.items())
    heading = budget_name(budget).capitalize()
    if not budget.arms:
        return Section(heading, refused)
    parts = (
        _differences(budget, comparison),
        _losses(budget, comparison),
        solving_section(budget, comparison),
        _through_training(budget, comparison, marks),
        _costs(budget, marks),
        _abilities(budget, marks),
        _ranks(budget, marks),
    )
    return Section(heading, refused, tuple(part for part in parts if part.blocks))


def _differences(budget: BudgetResult, comparison: Comparison) -> Section:
    control = comparison.control
    if not budget.verdicts:
        return Section("Differences", ())
    plot = Plot(
        name=f"forest-{budget.budget}",
        title=f"Differences of loss to {control}",
        text=f"Small dots are seeds, paired with {control}'s; the large mark is their mean, its "
        f"line the {100 * comparison.confidence:g} % interval. Below zero an arm is better than "
        f"{control}; within the band a difference counts as none.",
        draw=lambda: forest_figure(budget, comparison.delta),
    )
    return Section("Differences", (plot, differences_table(budget, comparison)))


def differences_table(budget: BudgetResult, comparison: Comparison) -> Table:
    """A row per verdict."""
    decimals = places(comparison.delta)
    interval = f"{100 * comparison.confidence:g} % interval"
    names = ("arm", "difference", interval, "verdict", "Holm p", "equivalence p")
    return Table(
        caption=f"Loss less that of {comparison.control}, in nats per token, paired by seed",
        headings=(*names, "bootstrap interval", "could find", "seeds needed"),
        rows=tuple(
            (
                arm,
                signed(verdict.mean, decimals),
                between(verdict.interval, decimals),
                verdict.word,
                probability(verdict.p_holm),
                probability(verdict.p_equivalence),
                between(verdict.bootstrap, decimals),
                number(verdict.resolves, decimals),
                seeds_needed(verdict),
            )
            for arm, verdict in budget.verdicts.items()
        ),
    )


def _losses(budget: BudgetResult, comparison: Comparison) -> Section:
    """A row per arm; columns that no arm has are left out."""
    decimals = max(4, places(comparison.delta) + 1)
    columns: dict[str, Callable[[ArmResult], str]] = {
        "seeds": lambda arm: str(len(arm.trainings)),
        "loss": lambda arm: number(mean(values(arm, "val_loss")), decimals),
        "between seeds": lambda arm: number(spread(values(arm, "val_loss")), decimals),
        "bits per byte": lambda arm: number(mean(values(arm, "bits_per_byte")), decimals),
        "above floor": lambda arm: number(mean(values(arm, "above_floor")), decimals),
        "accuracy": lambda arm: percent(mean(values(arm, "accuracy"))),
    }
    cells = {name: [cell(arm) for arm in budget.arms] for name, cell in columns.items()}
    kept = {name: column for name, column in cells.items() if set(column) != {MISSING}}
    table = Table(
        caption="Mean validation loss in nats per token, and its standard deviation between seeds",
        headings=("arm", *kept),
        rows=tuple(zip([arm.arm for arm in budget.arms], *kept.values(), strict=True)),
    )
    return Section("Losses", (table,))


def _through_training(budget: BudgetResult, comparison: Comparison, marks: Marks) -> Section:
    place, label = place_of(budget)
    lines = {arm.arm: curves(arm, place, lambda point: point.val_loss) for arm in budget.arms}
    if not any(lines.values()):
        return Section("Through training", ())
    plot = Plot(
        name=f"curves-{budget.budget}",
        title="Validation loss through training",
        text=f"{RANGE} Above the loss, below its paired difference to {comparison.control}, with "
        "the band that counts as none. The first losses lie above the figure.",
        draw=lambda: curves_figure(budget, marks, comparison.delta),
    )
    loss = _course("Mean validation loss, nats per token", label, lines, 4)
    shares = {arm.arm: curves(arm, place, lambda point: point.accuracy) for arm in budget.arms}
    return Section("Through training", (plot, loss, *_accuracy(budget, label, shares, marks)))


def _accuracy(
    budget: BudgetResult, label: str, shares: dict[str, Series | None], marks: Marks
) -> Iterator[Block]:
    if any(shares.values()):
        yield Plot(
            name=f"accuracy-{budget.budget}",
            title="Share of tokens predicted right through training",
            text=RANGE,
            draw=lambda: accuracy_figure(budget, marks),
        )
        yield _course("Mean share predicted right", label, shares, 3)


def _course(caption: str, label: str, lines: dict[str, Series | None], decimals: int) -> Table:
    """Means at a few places of the first arm's curve, a column per arm."""
    known = {arm: line for arm, line in lines.items() if line}
    at = next(iter(known.values())).at
    rows = at[np.unique(np.linspace(0, len(at) - 1, _SHOWN).astype(int))]
    columns = [_at(line, rows, decimals) for line in known.values()]
    return Table(
        caption=caption,
        headings=(label, *known),
        rows=tuple(
            zip(
                [f"{value:,.4g}" if value < 1000 else f"{value:,.0f}" for value in rows],
                *columns,
                strict=True,
            )
        ),
    )


def _at(line: Series, places: np.ndarray, decimals: int) -> list[str]:
    found = np.interp(places, line.at, line.mean, left=np.nan, right=np.nan)
    return [number(value, decimals) for value in found]


def _costs(budget: BudgetResult, marks: Marks) -> Section:
    plot = Plot(
        name=f"costs-{budget.budget}",
        title="Loss against what it costs",
        text="Lower is better, further left is cheaper; bars reach from the lowest seed to the "
        "highest.",
        draw=lambda: costs_figure(budget, marks),
    )
    return Section("Costs", (plot, costs_table(budget)))


def costs_table(budget: BudgetResult) -> Table:
    """A row per arm."""
    sizes = ("arm", "parameters", "multiply-adds", "cache bytes per token")
    return Table(
        caption="Multiply-adds per token, forward, at full context; time and memory are means",
        headings=(*sizes, "tokens per second", "training", "peak memory", "learning rate"),
        rows=tuple(
            (
                arm.arm,
                f"{arm.params:,}",
                count(arm.multiply_adds),
                f"{arm.cache_bytes_per_token:,}",
                count(mean(values(arm, "tok_s")) or 0),
                duration(cost(arm, "seconds")),
                memory(mean(values(arm, "peak_memory")) or 0),
                f"x {arm.lr_scale:g}",
            )
            for arm in budget.arms
        ),
    )


def _abilities(budget: BudgetResult, marks: Marks) -> Section:
    names = abilities(budget)
    if not names:
        return Section("Abilities", ())
    plot = Plot(
        name=f"abilities-{budget.budget}",
        title="What each ability adds to the loss",
        text="In bits per byte above the exact floor of the text; bars reach from the lowest seed "
        "to the highest.",
        draw=lambda: abilities_figure(budget, marks),
    )
    table = Table(
        caption="Mean contribution to the loss above the floor, bits per byte",
        headings=("arm", *names),
        rows=tuple(
            (arm.arm, *(number(part, 4) for part in ability_values(arm, names).mean(axis=0)))
            for arm in budget.arms
        ),
    )
    return Section("Abilities", (plot, table))


def _ranks(budget: BudgetResult, marks: Marks) -> Section:
    scores = {arm.arm: rank_series(arm, lambda ranks: ranks.scores) for arm in budget.arms}
    if not any(scores.values()):
        return Section("Rank", ())
    outputs = {arm.arm: rank_series(arm, lambda r: r.value_outputs) for arm in budget.arms}
    plot = Plot(
        name=f"ranks-{budget.budget}",
        title="Effective rank of the heads' matrices through training",
        text=f"S makes the scores, VO is what a head moves x by. {RANGE}",
        draw=lambda: ranks_figure(budget, marks),
    )
    tables = (_course("Effective rank of S, mean", "step", scores, 2),)
    tables += (_course("Effective rank of VO, mean", "step", outputs, 2),)
    return Section("Rank", (plot, *tables))
