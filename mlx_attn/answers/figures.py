"""A question's picture: the difference of every contrast in every world, beside the margin."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mlx_attn.answers.analysis import Finding
from mlx_attn.answers.study import Study
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


def question_figure(found: Sequence[Finding], study: Study) -> "Figure":
    """A panel a world: each contrast's seeds, mean and interval, the margin, the part's worth."""
    worlds = [world for world in study.worlds if any(f.world == world for f in found)]
    rows = [*dict.fromkeys((f.contrast.arm, f.contrast.control) for f in found)]
    size = (_SIZE[0], _SIZE[1] + _ROW * len(rows))
    figure, axes = panels(len(worlds), 3, size, sharey=True)
    for axis, world in zip(axes, worlds, strict=True):
        margin = study.worlds[world].margin
        axis.axvspan(-margin, margin, color=COLOURS[1], alpha=0.15, linewidth=0)
        axis.axvline(0, color=_GREY, linewidth=0.8)
        for one in (f for f in found if f.world == world and f.measured):
            _draw(axis, one, rows.index((one.contrast.arm, one.contrast.control)))
        axis.set_title(world)
        axis.locator_params(axis="x", nbins=4)
        axis.tick_params(axis="y", length=0)
    labels = [arm if control == "standard" else f"{arm}\n(to {control})" for arm, control in rows]
    axes[0].set_yticks(range(len(rows)), labels)
    axes[0].set_ylim(len(rows) - 0.5, -0.5)
    figure.supxlabel("nats per token above the control (left is better); band: the margin")
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
    axis.plot(measured.worth, row, "|", color=_GREY, markersize=11)
