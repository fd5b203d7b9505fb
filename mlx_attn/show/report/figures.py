"""Figures of a comparison beside the forest plot: through training, against costs, tuning."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mlx_attn.lab.compare.result import ArmResult, BudgetResult, Point, Tuning
from mlx_attn.show.figures import panels
from mlx_attn.show.quantities import count
from mlx_attn.show.report.marks import Mark, Marks
from mlx_attn.show.report.series import Place, Series, curves, paired, rank_series
from mlx_attn.show.report.words import values

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 4.2
"""Inches; a phone shows it at about its size."""

EARLY = 0.1
"""Share of the training whose losses may lie above a figure: they would flatten the rest."""

COSTS = {
    "params": "parameters",
    "multiply_adds": "multiply-adds per token",
    "seconds": "seconds of training",
    "cache_bytes_per_token": "cache, bytes per token",
}
"""What an arm costs, and what that is called."""


def place_of(budget: BudgetResult) -> tuple[Place, str]:
    """What the budget's curves run over: seconds where those are equal, else steps."""
    if budget.budget == "seconds":
        return lambda point: point.seconds, "seconds of training"
    per_step = {
        point.tokens // point.step
        for arm in budget.arms
        for training in arm.trainings
        for point in training.curve[-1:]
        if point.step
    }
    size = f" (of {per_step.pop():,} tokens)" if len(per_step) == 1 else ""
    return lambda point: point.step, f"step{size}"


def curves_figure(budget: BudgetResult, marks: Marks, delta: float) -> "Figure":
    """Loss through training, and its paired difference to the control: mean and range of seeds."""
    place, label = place_of(budget)
    control = budget.arms[0]
    figure, (losses, differences) = panels(2, 1, (WIDTH, 1.9), sharex=True)
    lines = [(arm, curves(arm, place, _loss)) for arm in budget.arms]
    for arm, line in lines:
        _draw(losses, line, marks[arm.arm])
    _leave_out_the_start(losses, [line for _, line in lines if line])
    gaps = [(arm, paired(arm, control, place)) for arm in budget.arms[1:]]
    for arm, line in gaps:
        _draw(differences, line, marks[arm.arm])
    _leave_out_the_start(differences, [line for _, line in gaps if line], delta)
    differences.axhspan(-delta, delta, color="#0072b2", alpha=0.15, linewidth=0)
    differences.axhline(0, color=marks[control.arm].colour, linewidth=0.8)
    losses.set_ylabel("nats per token")
    differences.set(xlabel=label, ylabel="less the control's")
    _legend(figure, losses)
    return figure


def accuracy_figure(budget: BudgetResult, marks: Marks) -> "Figure":
    """The share of tokens predicted right through training: mean and range of seeds."""
    place, label = place_of(budget)
    figure, (axis,) = panels(1, 1, (WIDTH, 2.6))
    for arm in budget.arms:
        _draw(axis, curves(arm, place, lambda point: point.accuracy), marks[arm.arm])
    axis.set(xlabel=label, ylabel="share predicted right", ylim=(0, 1.03))
    _legend(figure, axis)
    return figure


def costs_figure(budget: BudgetResult, marks: Marks) -> "Figure":
    """Loss against each cost; bars from the lowest to the highest seed."""
    figure, axes = panels(len(COSTS), 2, (WIDTH / 2, 1.8), sharey=True)
    for axis, (field, label) in zip(axes, COSTS.items(), strict=True):
        for arm in budget.arms:
            losses = _array(arm, "val_loss")
            middle = losses.mean()
            ends = [[middle - losses.min()], [losses.max() - middle]]
            look = marks[arm.arm].point()
            axis.errorbar(cost(arm, field), middle, yerr=ends, elinewidth=1, **look)
        axis.set_xlabel(label)
        axis.margins(x=0.15)
        axis.locator_params(axis="x", nbins=3)
        axis.xaxis.set_major_formatter(lambda value, _: count(value))
    figure.supylabel("nats per token", fontsize=9)
    _legend(figure, axes[0])
    return figure


def cost(arm: ArmResult, field: str) -> float:
    """A cost of an arm; the mean over its trainings where those differ."""
    return _array(arm, "seconds").mean() if field == "seconds" else float(getattr(arm, field))


def abilities_figure(budget: BudgetResult, marks: Marks) -> "Figure":
    """What each ability adds to the loss: a row per ability, a mark per arm."""
    names = abilities(budget)
    figure, (axis,) = panels(1, 1, (WIDTH, 1.1 + 0.42 * len(names)))
    apart = 0.7 / len(budget.arms)
    for i, arm in enumerate(budget.arms):
        rows = np.arange(len(names)) + (i - (len(budget.arms) - 1) / 2) * apart
        parts = ability_values(arm, names)
        bars = np.stack([parts.mean(0) - parts.min(0), parts.max(0) - parts.mean(0)])
        look = marks[arm.arm].point() | {"markersize": 4}
        axis.errorbar(parts.mean(0), rows, xerr=bars, elinewidth=1, **look)
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.set_xlim(left=min(0, axis.get_xlim()[0]))
    axis.set_xlabel("bits per byte above the floor")
    for between in range(1, len(names)):
        axis.axhline(between - 0.5, color="#7f7f7f", linewidth=0.3)
    _legend(figure, axis)
    return figure


def abilities(budget: BudgetResult) -> list[str]:
    """The abilities that every training has a part of the loss for."""
    parts = [training.abilities for arm in budget.arms for training in arm.trainings]
    return [name for name in parts[0] if all(name in part for part in parts)] if parts else []


def ability_values(arm: ArmResult, names: Sequence[str]) -> np.ndarray:
    """[seed, ability]."""
    return np.array([[training.abilities[name] for name in names] for training in arm.trainings])


def ranks_figure(budget: BudgetResult, marks: Marks) -> "Figure":
    """Effective rank of the heads' matrices through training: mean and range of seeds."""
    figure, axes = panels(2, 2, (WIDTH / 2, 2.3), sharex=True)
    for arm in budget.arms:
        _draw(axes[0], rank_series(arm, lambda ranks: ranks.scores), marks[arm.arm])
        _draw(axes[1], rank_series(arm, lambda ranks: ranks.value_outputs), marks[arm.arm])
    for axis, title in zip(axes, ("S", "VO"), strict=True):
        axis.set(title=title, xlabel="step")
        axis.set_ylim(bottom=0)
        axis.locator_params(axis="x", nbins=3)
    axes[0].set_ylabel("effective rank")
    _legend(figure, axes[0])
    return figure


def tuning_figure(tunings: Sequence[Tuning], marks: Marks) -> "Figure":
    """Loss against the factor of the learning rates; a ring around every arm's best."""
    figure, (axis,) = panels(1, 1, (WIDTH, 2.8))
    for tuning in tunings:
        known = [(factor, loss) for factor, loss in tuning.losses.items() if loss is not None]
        at, losses = np.array(sorted(known)).reshape(-1, 2).T
        look = marks[tuning.arm].line() | {"marker": marks[tuning.arm].marker, "markersize": 4}
        axis.plot(at, losses, **look)
        best = tuning.losses.get(tuning.best)
        if best is not None:
            ring = {"markerfacecolor": "none", "color": marks[tuning.arm].colour}
            axis.plot(tuning.best, best, "o", markersize=11, **ring)
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter("{x:g}")
    axis.set(xlabel="learning rates, times those of the settings", ylabel="nats per token")
    _legend(figure, axis)
    return figure


def _loss(point: Point) -> float:
    return point.val_loss


def _array(arm: ArmResult, field: str) -> np.ndarray:
    return np.array(values(arm, field), float)


def _draw(axis: Any, series: Series | None, mark: Mark) -> None:
    """The mean as a line in the range of the seeds."""
    if series is None:
        return
    low, high = series.values.min(axis=0), series.values.max(axis=0)
    if len(series.values) > 1:
        axis.fill_between(series.at, low, high, color=mark.colour, alpha=0.2, linewidth=0)
    alone = {"marker": mark.marker, "markersize": 4} if len(series.at) == 1 else {}
    axis.plot(series.at, series.mean, **mark.line(), **alone)


def _leave_out_the_start(axis: Any, lines: Sequence[Series], least: float = 0.0) -> None:
    """Let the axis show all but the early values, and at least from -least to least."""
    late = [line.values[:, line.at >= EARLY * line.at[-1]] for line in lines]
    seen = np.concatenate([part[np.isfinite(part)] for part in late] or [np.zeros(0)])
    if not len(seen):
        return
    low, high = min(seen.min(), -least or np.inf), max(seen.max(), least or -np.inf)
    margin = 0.06 * (high - low) or 0.01
    axis.set_ylim(low - margin, high + margin)


def _legend(figure: "Figure", axis: Any) -> None:
    handles, labels = axis.get_legend_handles_labels()
    columns = 1 if max(map(len, labels), default=0) > 24 else 2
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)
