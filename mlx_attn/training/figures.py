"""The training loss as a curve: above the bar, drawn with dots of braille; as a figure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.progress import Progress
from rich.text import Text

from mlx_attn.ui.plots import COLOURS, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CURVE = (70, 6)
"""Most columns, and the lines, of the curve."""
_FITS = (50, 20)
"""Columns and lines that a terminal needs to show it."""
_FEWEST = 3  # losses that make a curve


class ProgressWithCurve(Progress):
    """A bar, and above it the losses so far where the terminal has room for them."""

    def __init__(self, *columns: Any, **options: Any):
        self._losses: list[float] = []
        super().__init__(*columns, **options)

    def add(self, loss: float) -> None:
        """Add the next loss."""
        if math.isfinite(loss):
            self._losses.append(loss)

    def restart(self) -> None:
        """Begin the curve of another training."""
        self._losses.clear()

    def curve(self) -> str:
        """The losses as lines; "" on a small terminal, one without braille, or too early."""
        if len(self._losses) < _FEWEST:
            return ""
        size, encoding = self.console.size, self.console.encoding.lower()
        if size.width < _FITS[0] or size.height < _FITS[1] or not encoding.startswith("utf"):
            return ""
        width, height = min(size.width, CURVE[0]), CURVE[1]
        return "\n".join(line_plot(self._losses, width, height, "training loss"))

    def get_renderables(self) -> Iterable[RenderableType]:
        """What is drawn again and again."""
        if curve := self.curve():
            yield Text(curve)
        yield self.make_tasks_table(self.tasks)


def line_plot(values: Sequence[float], width: int, height: int, title: str) -> list[str]:
    """A curve as `height` lines of `width` columns, on a logarithmic scale.

    Each character holds 2 x 4 dots of braille (U+2800 to U+28FF). The first line says the largest
    value, the last one the smallest.

    Args:
        values: In order; all positive, or the scale is linear.
        width: Columns, with the labels.
        height: Lines.
        title: Stands at the right of the first line.
    """
    label = max(len(f"{bound:.2f}") for bound in (min(values), max(values)))
    columns = 2 * (width - label - 2)
    heights = _heights(values, columns, 4 * height)
    rows = [[0] * (columns // 2) for _ in range(height)]
    for x, (y, before) in enumerate(zip(heights, heights[:1] + heights, strict=False)):
        # The curve is connected: a step down is a vertical line.
        for dot in range(min(y, before), max(y, before) + (y == before)):
            rows[dot // 4][x // 2] |= _BRAILLE[x % 2][dot % 4]
        rows[y // 4][x // 2] |= _BRAILLE[x % 2][y % 4]
    lines = ["".join(chr(0x2800 + dots) for dots in row) for row in rows]
    labels = [f"{max(values):.2f}", *[""] * (height - 2), f"{min(values):.2f}"]
    blank = "\u2800" * len(title)
    lines[0] = lines[0].removesuffix(blank) + title * lines[0].endswith(blank)
    return [f"{text:>{label}}  {line}" for text, line in zip(labels, lines, strict=True)]


_BRAILLE = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""The bits of the dots of a character, from top to bottom, by column."""


def _heights(values: Sequence[float], columns: int, dots: int) -> list[int]:
    """For each column of dots, how far below the top the curve is there."""
    scaled = [math.log(value) for value in values] if min(values) > 0 else list(values)
    top, span = max(scaled), (max(scaled) - min(scaled)) or 1.0
    last = len(values) - 1
    places = [x * last / max(columns - 1, 1) for x in range(columns)]
    between = ((math.floor(p), math.ceil(p), p % 1) for p in places)
    curve = (scaled[low] * (1 - part) + scaled[high] * part for low, high, part in between)
    return [round((top - y) / span * (dots - 1)) for y in curve]


def draw_losses(training: Mapping[int, float], validation: Mapping[int, float]) -> "Figure":
    """The losses of a training in nats per token, by step."""
    figure, (axis,) = panels(1, 1, (4.5, 2.5))
    for losses, colour, mark, label in (
        (training, COLOURS[7], "-", "training"),
        (validation, COLOURS[1], "o-", "validation"),
    ):
        axis.plot([*losses], [*losses.values()], mark, color=colour, markersize=3, label=label)
    axis.set(xlabel="step", ylabel="nats per token")
    axis.legend()
    return figure
