"""The forest plot: paired differences with their interval, against what counts as none."""

import textwrap
from typing import TYPE_CHECKING, Any

from mlx_attn.lab.compare.result import BudgetResult
from mlx_attn.lab.statistics import Verdict
from mlx_attn.show.figures import panels
from mlx_attn.show.report.words import shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
