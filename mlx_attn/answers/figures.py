"""How answers look: a panel a world, and what every ability costs in the course of training."""

from collections.abc import Mapping, Sequence
from math import expm1
from typing import TYPE_CHECKING, Any

from mlx_attn.answers.findings import AbilityCurve, Finding
from mlx_attn.answers.study import Study
from mlx_attn.answers.trends import TrendFinding
from mlx_attn.ui.plots import COLOURS, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIZE, _ROW = (3.1, 1.1), 0.42  # inches: of a panel without rows, and of a row
_GREY = "#7f7f7f"
_LOOKS: Mapping[str, tuple[str, str]] = {
    "equivalent": (COLOURS[1], "s"),
    "better": (COLOURS[2], "D"),
    "worse": (COLOURS[0], "^"),
    "undecided": (_GREY, "o"),
    "insensitive": (_GREY, "x"),
}
"""Colour and marker by the first word of a verdict."""
_ABILITY = (3.1, 2.1)  # inches: of a panel
_WIDTHS = (5.2, 3.2)
_HEADROOM = 1.25  # of the largest difference that is no reference's


def question_figure(found: Sequence[Finding], study: Study) -> "Figure":
    """A panel a world: each contrast's seeds, mean and interval, and the margin."""
    found = [f for f in found if f.measured]
    worlds = [world for world in study.worlds if any(f.world == world for f in found)]
    rows = [*dict.fromkeys((f.contrast.arm, f.contrast.control) for f in found)]
    size = (_SIZE[0], _SIZE[1] + _ROW * len(rows))
    figure, axes = panels(len(worlds), 3, size, sharey=True)
    for axis, world in zip(axes, worlds, strict=True):
        margin = study.worlds[world].margin
        axis.axvspan(-margin, margin, color=COLOURS[1], alpha=0.15, linewidth=0)
        axis.axvline(0, color=_GREY, linewidth=0.8)
        for one in (f for f in found if f.world == world):
            _draw(axis, one, rows.index((one.contrast.arm, one.contrast.control)))
        axis.set_title(world)
        axis.locator_params(axis="x", nbins=4)
        axis.tick_params(axis="y", length=0)
    labels = [arm if control == "standard" else f"{arm}\n(to {control})" for arm, control in rows]
    axes[0].set_yticks(range(len(rows)), labels)
    axes[0].set_ylim(len(rows) - 0.5, -0.5)
    label = "nats per token above the control (left is better); band: the margin"
    figure.supxlabel(label if len(axes) > 1 else label.replace(" (", "\n("))  # a panel is narrow
    return figure


def _draw(axis: Any, found: Finding, row: int) -> None:
    measured = found.measured
    assert measured is not None
    colour, marker = _LOOKS[found.word.partition(" ")[0]]
    seeds = measured.differences
    axis.plot(seeds, [row - 0.22] * len(seeds), "o", color=colour, markersize=2.5, alpha=0.6)
    if found.interval:
        axis.plot(found.interval, [row, row], color=colour, linewidth=1.8)
    axis.plot(measured.sample.mean, row, marker, color=colour, markersize=6)


def ability_figure(curves: Sequence[AbilityCurve]) -> "Figure":
    """A panel an ability: how far arms are above the control, by the tokens they have read.

    The axis is that of the arms; of references, which lack a part altogether, it may show only the
    beginning.
    """
    names = [*curves[0].differences]
    figure, axes = panels(len(names), 3, _ABILITY, sharex=True)
    for axis, name in zip(axes, names, strict=True):
        axis.axhline(0, color=_GREY, linewidth=0.8)
        for place, curve in enumerate(curves):
            look = {"color": _GREY, "linestyle": (":", "--")[place % 2]}
            look = look if curve.is_reference else {"color": COLOURS[place % len(COLOURS)]}
            thousands = [tokens / 1000 for tokens in curve.tokens]
            axis.plot(thousands, curve.differences[name], label=curve.arm, linewidth=1.4, **look)
        shown = [d for c in curves if not c.is_reference for d in c.differences[name]]
        if shown:
            axis.set_ylim(min(0, *shown) * _HEADROOM - 0.01, max(0, *shown) * _HEADROOM + 0.01)
        axis.set_title(name)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), 6))
    figure.supxlabel("thousand tokens of training")
    figure.supylabel("nats per such token above the control")
    return figure


def width_figure(found: Sequence[TrendFinding]) -> "Figure":
    """What every arm costs in tokens, by the width."""
    figure, (axis,) = panels(1, 1, _WIDTHS)
    axis.axhline(0, color=_GREY, linewidth=0.8)
    drawn = [one for one in found if one.costs]
    for place, one in enumerate(drawn):
        shift = 2 ** (0.06 * (place - (len(drawn) - 1) / 2))  # side by side
        widths = [cost.width * shift for cost in one.costs]
        means = [_share(sum(cost.costs) / len(cost.costs)) for cost in one.costs]
        ends = [[_share(end) for end in cost.interval] for cost in one.costs]
        reach = [[abs(m - end[k]) for m, end in zip(means, ends, strict=True)] for k in (0, 1)]
        look = {"color": COLOURS[place % len(COLOURS)], "marker": "o", "markersize": 4}
        axis.errorbar(widths, means, reach, label=one.trend.arm, linewidth=1.4, **look)
    ticks = sorted({cost.width for one in drawn for cost in one.costs})
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [f"{width}" for width in ticks])
    axis.legend()
    figure.supxlabel("width of the residual stream")
    figure.supylabel("% of tokens for the same loss")
    return figure


def _share(cost: float) -> float:
    return -100 * expm1(-cost)
