"""Speeds as a table for a terminal."""

from collections.abc import Sequence

from rich.table import Table

from mlx_attn.bench.speed import Measurement, MedianIQR
from mlx_attn.ui.terminal import count, memory, number_table

TITLES = {
    "train": "training step",
    "forward": "forward pass with its loss",
    "decode": "decoding one text with the cache",
}


def speed_lines(measured: Sequence[Measurement]) -> list[Table | str]:
    """Return what to print of one kind of work: its table, and which device is faster."""
    first, several_devices = measured[0], len({row.device for row in measured}) > 1
    table = number_table(["", *speed_cells(first, first)], TITLES[first.work])
    for row in measured:
        name = f"{row.name}, {row.device}" if several_devices else row.name
        table.add_row(name, *speed_cells(row, first).values())
    return [table, *filter(None, [faster_device(measured)])]


_USES = {"train": "mlx-attn train", "decode": "mlx-attn sample"}
"""The command that does a kind of work."""


def faster_device(measured: Sequence[Measurement]) -> str:
    """Say which device did a command's work faster with the first model; "" for one device."""
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
