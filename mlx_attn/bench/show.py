"""Speeds as a table for a terminal and as a figure."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from mlx_attn.bench.kernels import KernelCount
from mlx_attn.bench.speed import Measurement, MedianIQR
from mlx_attn.ui import plots
from mlx_attn.ui.terminal import count, memory

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLES = {
    "train": "training step",
    "forward": "forward pass with its loss",
    "decode": "decoding one text with the cache",
}


def speed_table(measured: Sequence[Measurement]) -> Table:
    """One kind of work of every model."""
    cells = [speed_cells(row, measured[0]) for row in measured]
    table = table_of(TITLES[measured[0].work], cells[0])
    for row, line in zip(measured, cells, strict=True):
        table.add_row(row.name, *line.values())
    return table


def kernel_table(counted: Sequence[KernelCount]) -> Table:
    """The kernels of every model, a column for each kind of work."""
    works = list(dict.fromkeys(row.work for row in counted))
    table = table_of("kernels of one step", works)
    for name in dict.fromkeys(row.name for row in counted):
        found = {row.work: row.kernels for row in counted if row.name == name}
        table.add_row(name, *(str(found[work]) for work in works))
    return table


def table_of(title: str, headings: Iterable[str]) -> Table:
    """An empty table with a column of names before those of the headings."""
    table = Table(
        title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0)
    )
    table.add_column("", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def speed_cells(row: Measurement, first: Measurement) -> dict[str, str]:
    """A model's line of the table by heading; `first` is the model that it is compared with."""
    more_work = row.multiply_adds * row.tokens / (first.multiply_adds * first.tokens)
    return {
        "tokens/s": count(row.tok_s.median),
        "+-": half_iqr(row.tok_s),
        "x first": f"{row.over_first.median:.2f}",
        "x work": f"{row.over_first.median / more_work:.2f}",
        "memory": memory(row.peak_memory),
        "operations": str(row.operations),
    }


def half_iqr(spread: MedianIQR) -> str:
    """Half the distance between the quartiles, in percent of the median."""
    return f"{(spread.high - spread.low) / 2 / spread.median:.0%}"


def save_bench_figure(measured: Sequence[Measurement], path: Path) -> list[Path]:
    """Write the figure as SVG and PNG; returns their paths."""
    return plots.save_figure(lambda: _draw(measured), path.with_suffix(""))


def _draw(measured: Sequence[Measurement]) -> "Figure":
    """A panel for each kind of work: every model's time as a multiple of the first one's."""
    works = list(dict.fromkeys(row.work for row in measured))
    models = len({row.name for row in measured})
    figure, axes = plots.panels(len(works), 3, (3.6, 1.2 + 0.22 * models), sharey=True)
    for axis, work in zip(axes, works, strict=True):
        rows = [row for row in measured if row.work == work]
        ratios = [row.over_first for row in rows]
        errors = [[r.median - r.low for r in ratios], [r.high - r.median for r in ratios]]
        axis.barh(
            [row.name for row in rows],
            [ratio.median for ratio in ratios],
            xerr=errors,
            color=plots.COLOURS[1],
            height=0.7,
        )
        axis.axvline(1, color=plots.COLOURS[-1], linewidth=1, linestyle="--")
        axis.set(title=TITLES[work], xlabel=f"time, in times of {rows[0].name}'s")
    axes[0].invert_yaxis()
    return figure
