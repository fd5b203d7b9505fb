"""Where a conversation is shown: a pipe gets plain answers, a terminal gets rich ones."""

import os
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mlx_attn.show.repl.columns import Column, next_row, padded, side_by_side

WIDE = 80
"""Columns of a terminal from which two texts fit side by side."""

RULE = " │ "

_CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
_PICTURES = _CONTROLS | {127: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


def printable(text: str) -> str:
    """Text whose control characters are pictures: a model's bytes must not steer a terminal."""
    return text.translate(_PICTURES)


class PlainScreen:
    """Answers as they are to one place, everything else to another.

    Args:
        answers: Writes text at once.
        messages: Writes text at once.
    """

    wide = False

    def __init__(self, answers: Callable[[str], None], messages: Callable[[str], None]):
        self._answer = answers
        self._message = messages

    def say(self, text: str) -> None:
        """Show a message."""
        self._message(f"{text}\n")

    note = say

    def table(self, rows: Sequence[tuple[str, str]]) -> None:
        """Show names and what they mean."""
        width = max(len(name) for name, _ in rows)
        for name, meaning in rows:
            self.say(f"{name:{width}}  {meaning}")

    def heading(self, text: str) -> None:
        """Say whose text follows, among the answers."""
        self._answer(f"[{text}]\n")

    def stream(self, pieces: Iterator[str]) -> None:
        """Show a text as it comes, and a newline."""
        for piece in pieces:
            self._answer(piece)
        self._answer("\n")

    def columns(self, headings: Sequence[str], streams: Sequence[Iterator[str]]) -> None:
        """Show one text after the other."""
        for heading, pieces in zip(headings, streams, strict=True):
            self.heading(heading)
            self.stream(pieces)


class TerminalScreen:
    """A terminal, of any width; without colour or weight where NO_COLOR is set."""

    def __init__(self, console: Console):
        self._console = console

    @property
    def wide(self) -> bool:
        """Whether two texts fit side by side."""
        return self._console.width >= WIDE

    def say(self, text: str) -> None:
        """Show a message."""
        self._print(text)

    def note(self, text: str) -> None:
        """Show a remark, dimly."""
        self._print(text, "dim")

    def table(self, rows: Sequence[tuple[str, str]]) -> None:
        """Show names and what they mean."""
        grid = Table.grid(padding=(0, 2, 0, 0))
        for name, meaning in rows:
            grid.add_row(Text(printable(name)), Text(printable(meaning)))
        self._console.print(grid)

    def heading(self, text: str) -> None:
        """Say whose text follows."""
        self._print(text, "bold")

    def stream(self, pieces: Iterator[str]) -> None:
        """Show a text as it comes; the terminal wraps it."""
        try:
            for piece in pieces:
                self._console.out(printable(piece), end="", highlight=False)
        finally:
            self._console.out()

    def columns(self, headings: Sequence[str], streams: Sequence[Iterator[str]]) -> None:
        """Show texts side by side, row by row."""
        width = (self._console.width - len(RULE) * (len(streams) - 1)) // len(streams)
        columns = [Column(width) for _ in streams]
        shown = [(printable(piece) for piece in pieces) for pieces in streams]
        self._row(headings, width, "bold")
        try:
            for row in side_by_side(shown, columns):
                self._row(row, width)
        finally:
            self._rest(columns, width)

    def _rest(self, columns: Sequence[Column], width: int) -> None:
        """The rows that were under way when the answers ended or were stopped."""
        for column in columns:
            column.close()
        while any(column.rows for column in columns):
            self._row(next_row(columns), width)

    def _row(self, cells: Sequence[str], width: int, style: str = "") -> None:
        self._print(RULE.join(padded(cell, width) for cell in cells).rstrip(), style)

    def _print(self, text: str, style: str = "") -> None:
        self._console.print(Text(printable(text), style))


def terminal_screen() -> TerminalScreen:
    """The screen of this process's terminal."""
    plain = bool(os.environ.get("NO_COLOR"))
    return TerminalScreen(Console(color_system=None if plain else "auto", highlight=False))
