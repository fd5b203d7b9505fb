"""The figure of loss against rank."""

from pathlib import Path
from typing import TYPE_CHECKING

from mlx_attn.lab.convert.ranks import RankCurve
from mlx_attn.lab.convert.table import find_conversion
from mlx_attn.show.figures import COLOURS, panels, save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDE = 8
"""Ranks from 1 to this many times as much or more are drawn on a logarithmic scale."""


def save_rank_curve(curve: RankCurve, directory: Path) -> list[Path]:
    """Write the figure as ranks-FORM.svg and ranks-FORM.png; returns their paths.

    Raises:
        RunError: matplotlib is not installed, or the files cannot be written.
    """
    return save_figure(lambda: draw_rank_curve(curve), directory / f"ranks-{curve.to}")


def draw_rank_curve(curve: RankCurve) -> "Figure":
    """Validation loss against rank, with the loss of the model itself as a line."""
    ranks, original = [point.rank for point in curve.points], curve.original
    figure, (axis,) = panels(1, 1, (5.2, 3.2))
    losses = [point.figures.val_loss for point in curve.points]
    axis.plot(ranks, losses, "-o", color=COLOURS[1], linewidth=1.4, markersize=3.5)
    axis.axhline(original.val_loss, color=COLOURS[0], linewidth=1, linestyle="--")
    axis.annotate(
        f"the model as trained: {original.val_loss:.4f}",
        (0, original.val_loss),
        xycoords=("axes fraction", "data"),
        xytext=(6, 4),
        textcoords="offset points",
        color=COLOURS[0],
    )
    if max(ranks) >= WIDE * min(ranks):
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter("{x:g}")
    axis.set(
        xlabel=f"rank: {find_conversion(curve.to).ranked}", ylabel="validation loss, nats per token"
    )
    return figure
