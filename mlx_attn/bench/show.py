"""Speeds as a table for a terminal."""

from collections.abc import Iterable, Sequence

from rich.table import Table

from mlx_attn.bench.speed import Measurement, MedianIQR
from mlx_attn.ui.terminal import count, memory

TITLES = {
    "train": "training step",
    "forward": "forward pass with its loss",
    "decode": "decoding one text with the cache",
}


def speed_lines(measured: Sequence[Measurement]) -> list[Table | str]:
    """Return what to print of one kind of work: its table, and which device is faster."""
    cells = [speed_cells(row, measured[0]) for row in measured]
    table = table_of(TITLES[measured[0].work], cells[0])
    for name, line in zip(_row_names(measured), cells, strict=True):
        table.add_row(name, *line.values())
    return [table, *filter(None, [faster_device(measured)])]


def _row_names(measured: Sequence[Measurement]) -> list[str]:
    """Return the name of each row's model, with its device if there are several."""
    several = len({row.device for row in measured}) > 1
    return [f"{row.name}, {row.device}" if several else row.name for row in measured]


_USES = {"train": "mlx-attn train", "decode": "mlx-attn sample"}
"""The command that does a kind of work."""


def faster_device(measured: Sequence[Measurement]) -> str:
    """Say which device did one kind of work faster with the first model, and how to use it.

    Returns:
        One line; "" if only one device was measured, or no command does this work.
    """
    rows = [row for row in measured if row.name == measured[0].name]
    if len(rows) < 2 or rows[0].work not in _USES:
        return ""
    slow, fast = sorted(rows, key=lambda row: row.tok_s.median)
    times, title = fast.tok_s.median / slow.tok_s.median, TITLES[fast.work]
    if fast.tok_s.low <= slow.tok_s.high:
        return f"{title}, {fast.name}: the {fast.device} and the {slow.device} are equally fast"
    return (
        f"{title}, {fast.name}: the {fast.device} is {times:.1f} times as fast as the "
        f"{slow.device}: {_USES[fast.work]} --device {fast.device}"
    )


def table_of(title: str, headings: Iterable[str]) -> Table:
    """Return an empty table with a column of names before the headings' columns."""
    table = Table(
        title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0)
    )
    table.add_column("", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def speed_cells(row: Measurement, first: Measurement) -> dict[str, str]:
    """Return a model's cells by heading; `first` is the model that it is compared with."""
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
    """Return half the distance between the quartiles, in percent of the median."""
    return f"{(spread.high - spread.low) / 2 / spread.median:.0%}"
