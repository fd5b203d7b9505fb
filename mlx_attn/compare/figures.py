"""How the arms of a comparison are told apart in every figure: colour, marker and dashes."""

import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mlx_attn.compare.result import (
    ArmResult,
    BudgetResult,
    Comparison,
    Point,
    RankPoint,
    TrialResult,
    Tuning,
)
from mlx_attn.compare.statistics import Verdict
from mlx_attn.compare.wording import shown, values
from mlx_attn.ui.plots import COLOURS, panels
from mlx_attn.ui.terminal import count

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MARKERS = "osD^vPX*"
_DASHES = ("-", "--", "-.", ":")


@dataclass(frozen=True, slots=True)
class Mark:
    """How an arm looks, which colour alone never says."""

    label: str
    colour: str
    marker: str
    dashes: str

    def line(self) -> dict[str, Any]:
        """What matplotlib draws a curve with."""
        return {
            "color": self.colour,
            "linestyle": self.dashes,
            "linewidth": 1.4,
            "label": self.label,
        }

    def point(self) -> dict[str, Any]:
        """What matplotlib draws a single value with."""
        return {
            "color": self.colour,
            "marker": self.marker,
            "linestyle": "none",
            "markersize": 5,
            "label": self.label,
        }


Marks = dict[str, Mark]


def marks_of(comparison: Comparison) -> Marks:
    """A mark for every arm, the same under all budgets."""
    names = [arm.arm for budget in comparison.budgets for arm in budget.arms]
    return marks([*names, *(tuning.arm for tuning in comparison.tunings)])


def marks(names: Iterable[str]) -> Marks:
    """A mark for every name, in order."""
    return {name: _mark(place, name) for place, name in enumerate(dict.fromkeys(names))}


def _mark(place: int, name: str) -> Mark:
    colour = COLOURS[(place + 1) % len(COLOURS)]
    marker = _MARKERS[place % len(_MARKERS)]
    return Mark(shown(name), colour, marker, _DASHES[place % len(_DASHES)])


MOST = 60
"""Most points of a drawn curve."""

Place = Callable[[Point], float]
Value = Callable[[Point], float | None]


@dataclass(frozen=True, slots=True)
class Series:
    """One number of all seeds of an arm.

    Attributes:
        at: Steps or seconds, rising.
        values: [seed, place].
    """

    at: np.ndarray
    values: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        """Over seeds."""
        return self.values.mean(axis=0)


def curves(arm: ArmResult, place: Place, value: Value) -> Series | None:
    """A number of an arm's validations; None where it was not measured.

    Seeds that were validated elsewhere, as under a budget of seconds, are interpolated to the
    places of the first, up to where the shortest ends.
    """
    lines = [_line(training.curve, place, value) for training in arm.trainings]
    return _together([line for line in lines if len(line[0])])


def rank_series(arm: ArmResult, value: Callable[[RankPoint], float]) -> Series | None:
    """A number of an arm's matrices; None where it was not measured."""
    lines = [_rank_line(training, value) for training in arm.trainings]
    return _together([line for line in lines if len(line[0])])


def paired(arm: ArmResult, control: ArmResult, place: Place) -> Series | None:
    """The arm's loss less the control's, pair by pair of trainings with the same seed."""
    others = {training.seed: training for training in control.trainings}
    pairs = [(one, others[one.seed]) for one in arm.trainings if one.seed in others]
    return _together([_difference(one, other, place) for one, other in pairs])


def _difference(
    one: TrialResult, other: TrialResult, place: Place
) -> tuple[np.ndarray, np.ndarray]:
    at, losses = _line(one.curve, place, _loss)
    elsewhere, others = _line(other.curve, place, _loss)
    if not (len(at) and len(elsewhere)):
        return at[:0], losses[:0]
    inside = (at >= elsewhere[0]) & (at <= elsewhere[-1])
    return at[inside], (losses - np.interp(at, elsewhere, others))[inside]


def _loss(point: Point) -> float:
    return point.val_loss


def _line(points: Sequence[Point], place: Place, value: Value) -> tuple[np.ndarray, np.ndarray]:
    known = [(float(place(point)), v) for point in points if (v := value(point)) is not None]
    return _columns(known)


def _rank_line(
    training: TrialResult, value: Callable[[RankPoint], float]
) -> tuple[np.ndarray, np.ndarray]:
    return _columns([(float(ranks.step), value(ranks)) for ranks in training.ranks])


def _columns(pairs: Sequence[tuple[float, float]]) -> tuple[np.ndarray, np.ndarray]:
    at, values = np.array(pairs, float).reshape(-1, 2).T
    return at, values


def _together(lines: Sequence[tuple[np.ndarray, np.ndarray]]) -> Series | None:
    """All lines at the places of the first, as far as all of them reach."""
    lines = [line for line in lines if len(line[0])]
    if not lines:
        return None
    first = max(at[0] for at, _ in lines)
    last = min(at[-1] for at, _ in lines)
    at = lines[0][0]
    at = at[(at >= first) & (at <= last)]
    at = at[np.unique(np.linspace(0, len(at) - 1, MOST).astype(int))] if len(at) > MOST else at
    return Series(at, np.array([np.interp(at, *line) for line in lines])) if len(at) else None


LOOKS = {
    "better": ("#009e73", "<"),
    "equivalent": ("#0072b2", "D"),
    "worse": ("#d55e00", ">"),
    "undecided": ("#7f7f7f", "o"),
}
"""Colour and marker of each verdict."""

_WIDTH = 4.2
_ROW = 0.5
_NAME = 20
"""Characters of a name on one line."""


def forest_figure(budget: BudgetResult, delta: float) -> "Figure":
    """Differences of loss to the control: a dot per seed, the mean, its interval, the delta band.

    Args:
        budget: The arms under one budget, with verdicts.
        delta: Half the width of the band, in nats per token.
    """
    rows = list(budget.verdicts.items())
    figure, (axis,) = panels(1, 1, (_WIDTH, 1 + _ROW * len(rows)))
    if delta:
        axis.axvspan(-delta, delta, color="#0072b2", alpha=0.15, linewidth=0)
    axis.axvline(0, color="#7f7f7f", linewidth=0.8)
    for place, (_, verdict) in enumerate(rows):
        _draw_row(axis, place, verdict)
    axis.set_yticks(range(len(rows)), [_label(arm, verdict) for arm, verdict in rows])
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.tick_params(axis="y", length=0)
    axis.spines["left"].set_visible(False)
    axis.locator_params(axis="x", nbins=5)
    axis.set_xlabel(_axis_label(budget, delta))
    return figure


def _draw_row(axis: Any, place: int, verdict: Verdict) -> None:
    """The seeds above the line, the mean and its interval on it."""
    colour, marker = LOOKS.get(verdict.word, LOOKS["undecided"])
    seeds = verdict.differences
    axis.plot(seeds, [place - 0.22] * len(seeds), "o", color=colour, markersize=2.5, alpha=0.6)
    if verdict.interval:
        axis.plot(verdict.interval, [place, place], color=colour, linewidth=1.8)
    axis.plot(verdict.mean, place, marker, color=colour, markersize=6)


def _label(arm: str, verdict: Verdict) -> str:
    return "\n".join([*textwrap.wrap(shown(arm), _NAME), verdict.word])


def _axis_label(budget: BudgetResult, delta: float) -> str:
    control = textwrap.shorten(shown(budget.arms[0].arm), 24, placeholder="…")
    band = f"\nband: within {delta:g}, which counts as none" if delta else ""
    return f"nats per token above {control} (left is better){band}"


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
