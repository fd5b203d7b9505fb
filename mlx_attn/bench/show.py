"""Speeds as a table for a terminal, as a record for a program, and as a figure."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from mlx_attn.bench.peers import Comparison
from mlx_attn.bench.speed import Measurement
from mlx_attn.bench.timing import Spread
from mlx_attn.ui.plots import COLOURS, panels, save_figure
from mlx_attn.ui.terminal import count, memory

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLES = {
    "train": "training step",
    "forward": "forward pass with its loss",
    "decode": "decoding one text with the cache",
}


SPEEDS = ("tokens/s", "+-", "x floor", "x best", "x first", "x work", "memory", "operations")
BESIDE = ("ours, tokens/s", "theirs", "ours / theirs", "+-")


def speed_tables(measured: Sequence[Measurement]) -> list[Table]:
    """One kind of work of every model: how fast it is, and where its time goes."""
    first = measured[0]
    speeds = _table(TITLES[first.work], SPEEDS)
    parts = _table(f"{TITLES[first.work]}: share of the time", first.shares)
    for row in measured:
        speeds.add_row(row.name, *speed_cells(row, first))
        parts.add_row(row.name, *(f"{share:.0%}" for share in row.shares.values()))
    return [speeds, parts]


def _table(title: str, headings: Iterable[str]) -> Table:
    table = Table(
        title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0)
    )
    table.add_column("", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def peers_table(compared: Sequence[Comparison]) -> Table:
    """Ours beside each peer, on a model that computes the same as the peer's."""
    table = _table("beside others, at the same sizes", BESIDE)
    for row in compared:
        table.add_row(f"{row.peer}: {row.work}", *peer_cells(row))
    return table


def peer_cells(row: Comparison) -> list[str]:
    """What `BESIDE` names, of one peer."""
    return [
        count(row.ours.median),
        count(row.theirs.median),
        f"{row.faster.median:.2f}",
        f"{_width(row.faster):.0%}",
    ]


def record(measured: Sequence[Measurement | Comparison]) -> list[dict[str, Any]]:
    """All that was measured, as JSON can hold it."""
    return [asdict(row) for row in measured]


def measurements_from(rows: Sequence[dict[str, Any]]) -> list[Measurement]:
    """The inverse of `record`, for measurements."""
    return [Measurement(**_with_spreads(row)) for row in rows]


def comparisons_from(rows: Sequence[dict[str, Any]]) -> list[Comparison]:
    """The inverse of `record`, for comparisons."""
    return [Comparison(**_with_spreads(row)) for row in rows]


def _with_spreads(row: dict[str, Any]) -> dict[str, Any]:
    spreads = {k: Spread(**v) for k, v in row.items() if isinstance(v, dict) and "median" in v}
    return {**row, **spreads}


def speed_cells(row: Measurement, first: Measurement) -> list[str]:
    """What `SPEEDS` names, of one model; `first` is the one that it is compared with."""
    more_work = row.multiply_adds * row.tokens / (first.multiply_adds * first.tokens)
    return [
        count(row.tok_s.median),
        f"{_width(row.tok_s):.0%}",
        f"{row.over_floor.median:.2f}",
        f"{row.over_best.median:.2f}",
        f"{row.over_first.median:.2f}",
        f"{row.over_first.median / more_work:.2f}",
        memory(row.peak_memory),
        str(row.operations),
    ]


def _width(spread: Spread) -> float:
    """Half the distance between the quartiles, as a fraction of the median."""
    return (spread.high - spread.low) / 2 / spread.median


def save_bench_figure(measured: Sequence[Measurement], path: Path) -> list[Path]:
    """Write the figure as SVG and PNG; returns their paths.

    Raises:
        RunError: matplotlib is not installed, or the files cannot be written.
    """
    return save_figure(lambda: draw_bench(measured), path.with_suffix(""))


def draw_bench(measured: Sequence[Measurement]) -> "Figure":
    """A panel for each kind of work: every model's time as a multiple of its floor, by part."""
    works = list(dict.fromkeys(row.work for row in measured))
    models = len({row.name for row in measured})
    figure, axes = panels(len(works), 3, (3.6, 1.2 + 0.22 * models), sharey=True)
    for axis, work in zip(axes, works, strict=True):
        rows = [row for row in measured if row.work == work]
        _draw_work(axis, rows)
        axis.set(title=TITLES[work], xlabel="time, in times of its matrix products alone")
    axes[0].invert_yaxis()
    return figure


def _draw_work(axis: Any, rows: Sequence[Measurement]) -> None:
    names = [row.name for row in rows]
    left = [0.0] * len(rows)
    for part, colour in zip(rows[0].shares, COLOURS, strict=False):
        lengths = [max(0.0, row.shares[part]) * row.over_floor.median for row in rows]
        axis.barh(names, lengths, left=left, color=colour, label=part, height=0.7)
        left = [start + length for start, length in zip(left, lengths, strict=True)]
    axis.axvline(1, color=COLOURS[-1], linewidth=1, linestyle="--")
    axis.legend(fontsize=6.5, loc="lower right")
