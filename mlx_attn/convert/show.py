"""Show conversions as tables in a terminal, and loss against rank as a figure."""

from pathlib import Path

from rich.table import Table

from mlx_attn.convert import measure
from mlx_attn.convert.conversions import CONVERSIONS, find_conversion
from mlx_attn.ui.plots import COLOURS, Figure, panels, save_figure
from mlx_attn.ui.terminal import count, number_table, word_table


def outcome_table(outcome: measure.Outcome) -> Table:
    """Return a table of a conversion, with columns before and after."""
    before, after = outcome.before, outcome.after
    title = f"attention: {before.variant} -> {after.variant}"
    table = number_table(("", "before", "after", "change"), title)
    losses = f"{before.val_loss:.6f}", f"{after.val_loss:.6f}", f"{outcome.loss_change:+.1e} nats"
    table.add_row(f"validation loss, {count(before.tokens)} tokens", *losses)
    for name, key in (("parameters", "params"), ("cache bytes per token", "cache_bytes_per_token")):
        old, new = getattr(before, key), getattr(after, key)
        table.add_row(name, f"{old:,}", f"{new:,}", f"{new - old:+,}")
    logits = outcome.logits
    rounding = f"{logits.rounding:.1e}", f"{logits.rounding_after:.1e}"
    table.add_row("largest logit difference", "", "", f"{logits.logit_difference:.1e}")
    table.add_row("  in float64", "", "", f"{logits.exact_difference:.1e}")
    table.add_row(f"  rounding, logits to {logits.largest_logit:.1f}", *rounding)
    table.add_row("relative error of S", "", "", f"{outcome.score_error:.1e}")
    table.add_row("relative error of VO", "", "", f"{outcome.output_error:.1e}")
    return table


def rank_table(curve: measure.RankCurve) -> Table:
    """Return a table with a row per rank; the last row is the original model."""
    original, headings = curve.original, ("rank", "val loss", "change", "parameters")
    table = number_table((*headings, "cache bytes/token", "error"))
    rows = [(str(rank), metrics, f"{error:.1e}") for rank, (metrics, error) in curve.points.items()]
    for rank, metrics, error in (*rows, ("model", original, "")):
        change = f"{metrics.val_loss - original.val_loss:+.4f}" if error else ""
        counts = (f"{metrics.params:,}", f"{metrics.cache_bytes_per_token:,}")
        table.add_row(rank, f"{metrics.val_loss:.4f}", change, *counts, error)
    return table


def conversions_table() -> Table:
    """Return a table of all conversions: the identity, and when it is exact."""
    rows = [
        (row.name, row.identity, row.exact + (f"; --rank: {row.ranked}" if row.ranked else ""))
        for row in CONVERSIONS.values()
    ]
    return word_table(("--to", "why both compute the same", "exact"), rows)


def save_rank_curve(curve: measure.RankCurve, directory: Path) -> list[Path]:
    """Write the figure as ranks-FORM.svg and ranks-FORM.png; return their paths."""

    def draw() -> Figure:
        ranks, original = list(curve.points), curve.original
        figure, (axis,) = panels(1, 1, (5.2, 3.2))
        losses = [metrics.val_loss for metrics, _ in curve.points.values()]
        axis.plot(ranks, losses, "-o", color=COLOURS[1], linewidth=1.4, markersize=3.5)
        trained = f"the model as trained: {original.val_loss:.4f}"
        axis.axhline(original.val_loss, color=COLOURS[0], linestyle="--", label=trained)
        axis.legend(labelcolor=COLOURS[0])
        if max(ranks) >= 8 * min(ranks):
            axis.set_xscale("log", base=2)
            axis.xaxis.set_major_formatter("{x:g}")
        axis.set(
            xlabel=f"rank: {find_conversion(curve.to).ranked}",
            ylabel="validation loss, nats per token",
        )
        return figure

    return save_figure(draw, directory / f"ranks-{curve.to}")
