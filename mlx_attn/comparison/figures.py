"""The figures of a report. Every arm has one colour, marker and dash pattern in all of them."""

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64

from mlx_attn.comparison import show
from mlx_attn.comparison.decisions import Verdict
from mlx_attn.comparison.result import ArmResult, BudgetResult, Comparison, TrialResult
from mlx_attn.ui.plots import COLOURS, panels
from mlx_attn.ui.terminal import count

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDTH = 4.2  # inches; a phone shows a figure at about its size
_MOST_POINTS = 60  # of a drawn curve
_EARLY = 0.1  # share of the training whose losses may lie above a figure: they flatten the rest

_COSTS = {
    "params": "parameters",
    "multiply_adds": "multiply-adds per token",
    "seconds": "seconds of training",
    "cache_bytes_per_token": "cache, bytes per token",
}

_BAND = {"color": "#0072b2", "alpha": 0.15, "linewidth": 0}
_GREY = "#7f7f7f"
_MARKERS, _DASHES = "osD^vPX*", ("-", "--", "-.", ":")
_NAME = 20  # characters of a name on one line


# Looks of a line, and of a point: added to the mark of an arm.
_LINE = {"linewidth": 1.4, "marker": ""}
_POINT = {"linestyle": "none", "markersize": 5}


def _marks(comparison: Comparison) -> dict[str, dict[str, str]]:
    """Return the looks of every arm, the same in all figures; arms differ in more than colour."""
    arms = [arm.arm for budget in comparison.budgets for arm in budget.arms]
    names = dict.fromkeys([*arms, *(tuning.arm for tuning in comparison.tunings)])
    looks = zip(cycle((*COLOURS[1:], COLOURS[0])), cycle(_MARKERS), cycle(_DASHES), strict=False)
    return {
        name: {"label": show.visible(name), "color": color, "marker": marker, "linestyle": dashes}
        for name, (color, marker, dashes) in zip(names, looks, strict=False)
    }


@dataclass(frozen=True, slots=True)
class Series:
    """A number of several trainings, at common steps or seconds."""

    at: Float64[np.ndarray, " N"]
    values: Float64[np.ndarray, "trainings N"]


def series(
    trainings: Sequence[TrialResult], x: str, y: str, points: str = "curve"
) -> Series | None:
    """Return a field of the points of trainings over another; None if not measured.

    Trainings that were validated elsewhere, as under a budget of seconds, are interpolated to the
    places of the first, up to where the shortest ends. `points` is the trainings' field with
    the points, "curve" or "ranks".
    """
    lines: list[Any] = []
    for training in trainings:
        pairs = [(getattr(point, x), getattr(point, y)) for point in getattr(training, points)]
        if measured := [pair for pair in pairs if pair[1] is not None]:
            # [N, 2] -> [2, N]
            lines.append(np.array(measured, float).T)
    if not lines:
        return None
    at = lines[0][0]
    # Only where every line has points on both sides: no extrapolation.
    at = at[(at >= max(x[0] for x, _ in lines)) & (at <= min(x[-1] for x, _ in lines))]
    if not len(at):
        return None
    # At most _MOST_POINTS, evenly spread; `unique`, because a short curve has fewer.
    at = at[np.unique(np.linspace(0, len(at) - 1, _MOST_POINTS).astype(int))]
    return Series(at, np.array([np.interp(at, *line) for line in lines]))


def x_axis(budget: BudgetResult) -> tuple[str, str]:
    """Return the field for the x-axis and its label: seconds if these are equal, else steps."""
    if budget.budget == "seconds":
        return "seconds", "seconds of training"
    last = [point for arm in budget.arms for t in arm.trainings for point in t.curve[-1:]]
    # Tokens per step, if all arms have the same.
    per_step = {point.tokens // point.step for point in last if point.step}
    return "step", f"step (of {per_step.pop():,} tokens)" if len(per_step) == 1 else "step"


def forest_figure(budget: BudgetResult, comparison: Comparison) -> "Figure":
    """Draw differences of loss to the control: a dot per seed, their mean, its interval, delta."""
    verdicts, delta = budget.verdicts, comparison.delta
    figure, (axis,) = panels(1, 1, (_WIDTH, 1 + 0.5 * len(verdicts)))
    draw_forest(axis, enumerate(verdicts.values()), delta)
    labels = [
        "\n".join([*textwrap.wrap(show.visible(arm), _NAME), verdict.word])
        for arm, verdict in verdicts.items()
    ]
    axis.set_yticks(range(len(labels)), labels)
    # Rows from top to bottom, in the order of the table.
    axis.set_ylim(len(labels) - 0.5, -0.5)
    axis.spines["left"].set_visible(False)
    axis.locator_params(axis="x", nbins=5)
    control = textwrap.shorten(show.visible(budget.arms[0].arm), 24, placeholder="…")
    better = f"left is better; within {delta:g}: no difference" if delta else "left is better"
    axis.set_xlabel(f"nats per token above {control}\n{better}")
    return figure


def draw_forest(axis: Any, verdicts: Iterable[tuple[int, Verdict]], margin: float) -> None:
    """Draw verdicts, each in its row: a dot per seed above the mean with its interval."""
    if margin:
        axis.axvspan(-margin, margin, **_BAND)
    axis.axvline(0, color=_GREY, linewidth=0.8)
    axis.tick_params(axis="y", length=0)
    for row, verdict in verdicts:
        look, seeds = show.LOOKS[verdict.word], verdict.differences
        # A little above the mean, so that the marks do not cover each other.
        rows = [row - 0.22] * len(seeds)
        axis.plot(seeds, rows, "o", color=look.colour, markersize=2.5, alpha=0.6)
        if verdict.interval:
            axis.plot(verdict.interval, [row, row], color=look.colour, linewidth=1.8)
        axis.plot(verdict.mean, row, look.marker, color=look.colour, markersize=6)


def curves_figure(budget: BudgetResult, comparison: Comparison) -> "Figure":
    """Draw loss through training and its paired difference to the control: mean and range."""
    x, label = x_axis(budget)
    marks, delta = _marks(comparison), comparison.delta
    control, *others = budget.arms
    figure, (losses, differences) = panels(2, 1, (_WIDTH, 1.9), sharex=True)
    lines = [_draw(losses, series(a.trainings, x, "val_loss"), marks[a.arm]) for a in budget.arms]
    # Untrained models have such large losses that the later differences would be invisible.
    _hide_the_start(losses, lines)
    gaps: list[Series | None] = []
    for arm in others:
        # One interpolation for both arms, so that pairs are compared at the same places.
        both = series((*arm.trainings, *control.trainings), x, "val_loss")
        seeds = len(arm.trainings)
        # [seeds of both, N] -> [seeds, N]
        gap = both and Series(both.at, both.values[:seeds] - both.values[seeds:])
        gaps.append(_draw(differences, gap, marks[arm.arm]))
    _hide_the_start(differences, gaps, delta)
    differences.axhspan(-delta, delta, **_BAND)
    differences.axhline(0, color=marks[control.arm]["color"], linewidth=0.8)
    losses.set_ylabel("nats per token")
    differences.set(xlabel=label, ylabel="minus the control's")
    return _with_legend(figure, losses)


def accuracy_figure(budget: BudgetResult, comparison: Comparison) -> "Figure":
    """Draw the share of tokens predicted right through training."""
    marks, (x, label) = _marks(comparison), x_axis(budget)
    figure, (axis,) = panels(1, 1, (_WIDTH, 2.6))
    for arm in budget.arms:
        _draw(axis, series(arm.trainings, x, "accuracy"), marks[arm.arm])
    axis.set(xlabel=label, ylabel="share predicted right", ylim=(0, 1.03))
    return _with_legend(figure, axis)


def ranks_figure(budget: BudgetResult, comparison: Comparison) -> "Figure":
    """Draw the effective ranks of the heads' matrices through training."""
    marks = _marks(comparison)
    figure, axes = panels(2, 2, (_WIDTH / 2, 2.3), sharex=True)
    for axis, title, field in zip(axes, ("S", "VO"), ("scores", "value_outputs"), strict=True):
        for arm in budget.arms:
            _draw(axis, series(arm.trainings, "step", field, "ranks"), marks[arm.arm])
        axis.set(title=title, xlabel="step")
        axis.set_ylim(bottom=0)
        axis.locator_params(axis="x", nbins=3)
    axes[0].set_ylabel("effective rank")
    return _with_legend(figure, axes[0])


def costs_figure(budget: BudgetResult, comparison: Comparison) -> "Figure":
    """Draw loss against each cost: the mean of an arm, and the range of its seeds."""
    marks = _marks(comparison)
    figure, axes = panels(len(_COSTS), 2, (_WIDTH / 2, 1.8), sharey=True)
    for axis, (field, label) in zip(axes, _COSTS.items(), strict=True):
        for arm in budget.arms:
            # [seeds, 1]
            losses = np.array([[training.val_loss] for training in arm.trainings])
            at = show.mean_of(arm, field) if field == "seconds" else getattr(arm, field)
            looks = marks[arm.arm] | _POINT
            axis.errorbar(at, losses.mean(), yerr=_bars(losses), elinewidth=1, **looks)
        axis.set_xlabel(label)
        axis.margins(x=0.15)
        axis.locator_params(axis="x", nbins=3)
        axis.xaxis.set_major_formatter(lambda value, _: count(value))
    figure.supylabel("nats per token")
    return _with_legend(figure, axes[0])


def abilities_figure(budget: BudgetResult, comparison: Comparison) -> "Figure":
    """Draw how much each ability adds to the loss: a row per ability, a mark per arm."""
    marks, names = _marks(comparison), abilities(budget)
    figure, (axis,) = panels(1, 1, (_WIDTH, 1.1 + 0.42 * len(names)))
    apart = 0.7 / len(budget.arms)
    for i, arm in enumerate(budget.arms):
        # The arms of an ability lie side by side, centred on its row.
        rows = np.arange(len(names)) + (i - (len(budget.arms) - 1) / 2) * apart
        parts = ability_values(arm, names)
        looks = marks[arm.arm] | _POINT | {"markersize": 4}
        axis.errorbar(parts.mean(0), rows, xerr=_bars(parts), elinewidth=1, **looks)
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.set_xlim(left=min(0, axis.get_xlim()[0]))
    axis.set_xlabel("bits per byte above the floor")
    for between in range(1, len(names)):
        axis.axhline(between - 0.5, color=_GREY, linewidth=0.3)
    return _with_legend(figure, axis)


def abilities(budget: BudgetResult) -> list[str]:
    """Return the abilities that every training has measured."""
    parts = [training.abilities for arm in budget.arms for training in arm.trainings]
    return [name for name in parts[0] if all(name in part for part in parts)]


def ability_values(arm: ArmResult, names: Sequence[str]) -> Float64[np.ndarray, "seeds abilities"]:
    """Return how much each ability adds to the loss of each seed, in bits per byte."""
    return np.array([[training.abilities[name] for name in names] for training in arm.trainings])


def tuning_figure(comparison: Comparison) -> "Figure":
    """Draw loss against the factor of the learning rates; a ring around every arm's best."""
    marks = _marks(comparison)
    figure, (axis,) = panels(1, 1, (_WIDTH, 2.8))
    for tuning in comparison.tunings:
        mark, best = marks[tuning.arm], tuning.losses.get(tuning.best)
        # Factors with which a training diverged are left out.
        points = sorted((f, loss) for f, loss in tuning.losses.items() if loss is not None)
        at, losses = np.array(points).reshape(-1, 2).T
        axis.plot(at, losses, **(_LINE | mark | {"markersize": 4}))
        if best is not None:
            ring = {"markersize": 11, "markerfacecolor": "none", "color": mark["color"]}
            axis.plot(tuning.best, best, "o", **ring)
    # Factors are powers of two, so they are equally far apart.
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter("{x:g}")
    axis.set(xlabel="learning rates, times those of the settings", ylabel="nats per token")
    return _with_legend(figure, axis)


def _draw(axis: Any, line: Series | None, mark: dict[str, str]) -> Series | None:
    """Draw the mean as a line in the range of the seeds; return both."""
    if line is None:
        return None
    # [seeds, N] -> [N]
    low, high = line.values.min(axis=0), line.values.max(axis=0)
    if len(line.values) > 1:
        axis.fill_between(line.at, low, high, color=mark["color"], alpha=0.2, linewidth=0)
    # A single place shows the arm's marker, because it has no line.
    looks = _LINE | mark | {"markersize": 4} if len(line.at) == 1 else mark | _LINE
    axis.plot(line.at, line.values.mean(axis=0), **looks)
    return line


def _bars(values: Float64[np.ndarray, "seeds N"]) -> Float64[np.ndarray, "2 N"]:
    """Return the distances of the lowest and highest seed from the mean, for matplotlib."""
    return np.stack([values.mean(0) - values.min(0), values.max(0) - values.mean(0)])


def _hide_the_start(axis: Any, lines: Sequence[Series | None], least: float = 0.0) -> None:
    """Let the axis show all but the early values, and at least from -least to least."""
    late = [line.values[:, line.at >= _EARLY * line.at[-1]] for line in lines if line]
    seen = np.concatenate([part[np.isfinite(part)] for part in late] or [np.zeros(0)])
    if not len(seen):
        return
    # At least the band of the margin has to be visible.
    low, high = min(seen.min(), -least or np.inf), max(seen.max(), least or -np.inf)
    margin = 0.06 * (high - low) or 0.01
    axis.set_ylim(low - margin, high + margin)


def _with_legend(figure: "Figure", axis: Any) -> "Figure":
    handles, labels = axis.get_legend_handles_labels()
    columns = 1 if max(map(len, labels), default=0) > 24 else 2
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)
    return figure
