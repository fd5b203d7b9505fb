"""The figures of a report. Every arm has one colour, marker and dash pattern in all of them."""

import textwrap
from collections.abc import Iterable, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from jaxtyping import Float64

from mlx_attn.comparison import show
from mlx_attn.comparison.result import Comparison, TrialResult
from mlx_attn.ui.plots import COLOURS, DASHES, Figure, panels

_WIDTH = 4.2  # inches; a phone shows a figure at about its size
_EARLY = 0.1  # share of the training whose losses may lie above a figure: they flatten the rest
_NAME = 20  # characters of a name on one line

_BAND = {"color": "#0072b2", "alpha": 0.15, "linewidth": 0}
_MARKERS = "osD^vPX*"


def forest_figure(comparison: Comparison) -> Figure:
    """Draw differences of loss to the control: a dot per seed, their mean, its interval, delta."""
    verdicts, delta = comparison.verdicts, comparison.delta
    words = {arm: one.word for arm, one in verdicts.items()} | {comparison.reference: "reference"}
    labels = ["\n".join([*textwrap.wrap(show.visible(arm), _NAME), words[arm]]) for arm in verdicts]
    lines = 1 + max((label.count("\n") for label in labels), default=0)
    figure, (axis,) = panels(1, 1, (_WIDTH, 1 + (0.1 + 0.2 * lines) * len(labels)))
    axis.axvline(0, color="grey", linewidth=0.8)
    for row, verdict in enumerate(verdicts.values()):
        look = show.LOOKS[verdict.word]
        # Each arm's own margin: half of the part's worth if that is less than delta.
        if verdict.margin:
            axis.fill_between([-verdict.margin, verdict.margin], row - 0.5, row + 0.5, **_BAND)
        # A little above the mean, so that the marks do not cover each other.
        rows = [row - 0.22] * len(verdict.differences)
        axis.plot(verdict.differences, rows, "o", color=look.colour, markersize=2.5, alpha=0.6)
        if verdict.interval:
            axis.plot(verdict.interval, [row, row], color=look.colour, linewidth=1.8)
        axis.plot(verdict.mean, row, look.marker, color=look.colour, markersize=6)
    axis.set_yticks(range(len(labels)), labels)
    axis.tick_params(axis="y", length=0)
    # Rows from top to bottom, in the order of the table.
    axis.set_ylim(len(labels) - 0.5, -0.5)
    axis.spines["left"].set_visible(False)
    axis.locator_params(axis="x", nbins=5)
    control = textwrap.shorten(show.visible(comparison.control), 24, placeholder="…")
    better = "left is better; in the band: the same" if delta else "left is better"
    # Below the whole figure: long names of arms leave an axis that is narrower than this.
    figure.supxlabel(f"nats per token above {control}\n{better}")
    return figure


Line = dict[int, Float64[np.ndarray, " trainings"]]
"""A number of several trainings, by step."""


def line_of(trainings: Sequence[TrialResult], field: str) -> Line:
    """Return a field of the validations of trainings, whose steps are the same."""
    curves = [[getattr(point, field) for point in one.curve] for one in trainings]
    steps = [point.step for point in trainings[0].curve]
    return dict(zip(steps, np.array(curves, float).T, strict=True))


def curves_figure(comparison: Comparison, field: str) -> Figure:
    """Draw a field of the validations through training, and its paired difference to the control.

    Lines are means over seeds, in the range of the seeds; the field is "val_loss" or "accuracy".
    """
    marks = _marks(comparison)
    margin = min((each.margin for each in comparison.verdicts.values()), default=comparison.delta)
    columns = 1 if max(len(mark["label"]) for mark in marks.values()) > 24 else 2
    # The legend of many arms takes its room below the axes and not from them.
    height = 1.9 + 0.11 * max(0, len(marks) / columns - 3)
    figure, (losses, differences) = panels(2, 1, (_WIDTH, height), sharex=True)
    lines = {arm.arm: line_of(arm.trainings, field) for arm in comparison.arms}
    control = lines[comparison.control]
    # In pairs of one seed, at the steps that both have.
    gaps = {
        arm: {step: line[step] - control[step] for step in line if step in control}
        for arm, line in lines.items()
        if arm != comparison.control
    }
    for axis, drawn in ((losses, lines), (differences, gaps)):
        for arm, line in drawn.items():
            _draw(axis, line, marks[arm])
    if field == "val_loss":
        # Untrained models have such large losses that the later differences would be invisible.
        _hide_the_start(losses, lines.values())
        _hide_the_start(differences, gaps.values(), margin)
        differences.axhspan(-margin, margin, **_BAND)
    differences.axhline(0, color=marks[comparison.control]["color"], linewidth=0.8)
    losses.set_ylabel("nats per token" if field == "val_loss" else "share predicted right")
    differences.set(xlabel="step", ylabel="minus the control's")
    figure.legend(*losses.get_legend_handles_labels(), loc="outside lower center", ncols=columns)
    return figure


def _marks(comparison: Comparison) -> dict[str, dict[str, str]]:
    """Return the looks of every arm; 28 arms differ, and in more than colour."""
    looks = zip(cycle((*COLOURS[1:-1], COLOURS[0])), cycle(_MARKERS), cycle(DASHES), strict=False)
    return {
        arm.arm: {"label": show.visible(arm.arm), "color": color, "marker": marker, "ls": dashes}
        for arm, (color, marker, dashes) in zip(comparison.arms, looks, strict=False)
    }


def _draw(axis: Any, line: Line, mark: dict[str, str]) -> None:
    """Draw the mean as a line in the range of the seeds."""
    steps, seeds = [*line], [*line.values()]
    low, high = ([limit(each) for each in seeds] for limit in (np.min, np.max))
    axis.fill_between(steps, low, high, color=mark["color"], alpha=0.2, linewidth=0)
    # A single place shows the arm's marker, because it has no line.
    looks = mark if len(steps) == 1 else mark | {"marker": ""}
    axis.plot(steps, [np.mean(each) for each in seeds], linewidth=1.4, markersize=4, **looks)


def _hide_the_start(axis: Any, lines: Iterable[Line], least: float = 0.0) -> None:
    """Let the axis show all but the early values, and at least from -least to least."""
    late = [each for line in lines for at, each in line.items() if at >= _EARLY * max(line)]
    if not late:
        return
    seen = np.concatenate(late)
    low, high = min(seen.min(), -least or np.inf), max(seen.max(), least or -np.inf)
    margin = 0.06 * (high - low) or 0.01
    axis.set_ylim(low - margin, high + margin)
