"""Two texts side by side, row by row as they come: nothing on the screen is ever redrawn."""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate

from rich.cells import cell_len


class Column:
    """A text that is cut into rows of at most `width` cells, at spaces where there are any.

    Attributes:
        rows: Those that no further text can change.
    """

    def __init__(self, width: int):
        self.width = width
        self.rows: deque[str] = deque()
        self._open = ""

    def push(self, text: str) -> None:
        """Go on with `text`."""
        self._open += text.replace("\t", " ")
        while cut := cut_row(self._open, self.width):
            row, self._open = cut
            self.rows.append(row)

    def close(self) -> None:
        """The text is at its end, so its last row is final."""
        if self._open:
            self.rows.append(self._open)
        self._open = ""


def cut_row(text: str, width: int) -> tuple[str, str] | None:
    """The first row of a text and what follows it; None while more text may still change it."""
    line, newline, rest = text.partition("\n")
    fits = _fitting(line, width)
    if fits == len(line):
        return (line, rest) if newline else None
    space = line.rfind(" ", 0, fits + 1)
    end = space if space > 0 else fits
    return text[:end], text[end:].removeprefix(" ")


def side_by_side(
    streams: Sequence[Iterator[str]], columns: Sequence[Column]
) -> Iterator[tuple[str, ...]]:
    """Rows of all columns, each as soon as every column has it; the streams take turns.

    A column whose stream has ended has empty rows.
    """
    running = dict(zip(columns, streams, strict=True))
    while running:
        for column, stream in list(running.items()):
            text = next(stream, None)
            if text is None:
                column.close()
                del running[column]
            else:
                column.push(text)
        while any(c.rows for c in columns) and all(c.rows for c in running):
            yield next_row(columns)


def next_row(columns: Sequence[Column]) -> tuple[str, ...]:
    """The next row of every column, empty where there is none."""
    return tuple(column.rows.popleft() if column.rows else "" for column in columns)


def padded(text: str, width: int) -> str:
    """A text with spaces up to `width` cells."""
    return text + " " * (width - cell_len(text))


def _fitting(line: str, width: int) -> int:
    """How many characters fit; at least one, so that every text comes to an end."""
    ends = accumulate(map(cell_len, line))
    return max(1, sum(1 for end in ends if end <= width)) if line else 0
