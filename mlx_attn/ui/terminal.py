"""Numbers as people read them, and the consoles that show them."""

import os
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from typing import Any

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from mlx_attn.errors import printable

_WIDTH = 80
_UNITS = ("", "k", "M", "G", "T")


def count(number: int | float) -> str:
    """Return a count in three digits: 943, 9.43k, 94.3k, 943k, 9.43M."""
    unit = 0
    while abs(number) >= 999.5 and unit < len(_UNITS) - 1:
        number /= 1000
        unit += 1
    decimals = 0 if not unit or abs(number) >= 99.95 else 1 if abs(number) >= 9.995 else 2
    return f"{number:.{decimals}f}{_UNITS[unit]}"


def memory(n_bytes: int | float) -> str:
    """Return bytes in decimal units: 20 kB, 12 MB, 1.2 GB."""
    if n_bytes >= 1e9:
        return f"{n_bytes / 1e9:.1f} GB"
    return f"{n_bytes / 1e6:.0f} MB" if n_bytes >= 1e6 else f"{n_bytes / 1e3:.0f} kB"


def duration(seconds: int | float) -> str:
    """Return minutes and seconds, hours or days: 0:07, 2:03:10, 12 days; - if it is not known."""
    if not 0 <= seconds < float("inf"):
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 100:
        return f"{hours / 24:,.0f} days"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def age(seconds: int | float) -> str:
    """Return how long ago, in one unit: 5 s, 3 min, 7 h, 12 days."""
    for size, unit in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


class _Console(Console):
    """A console without colour or weight if NO_COLOR is set.

    It raises when its reader is gone; rich's own would end the process.
    """

    def __init__(self, **options: Any):
        colours = None if os.environ.get("NO_COLOR") else "auto"
        super().__init__(highlight=False, color_system=colours, **options)
        if self.width < 1:  # as from COLUMNS=0
            self.width = _WIDTH

    def on_broken_pipe(self) -> None:
        # Called while a BrokenPipeError is handled.
        raise

    def render(self, *arguments: Any, **options: Any) -> Iterator[Segment]:
        """Yield the segments of anything, in which control characters are pictures."""
        for text, style, control in super().render(*arguments, **options):
            yield Segment(text if control else printable(text), style, control)


def stderr_console() -> Console:
    """Return the console for progress and messages."""
    return _Console(stderr=True)


def stdout_console() -> Console:
    """Return the console for results."""
    return _Console()


def is_live(console: Console) -> bool:
    """Return True if the terminal can be redrawn, regardless of FORCE_COLOR."""
    return console.file.isatty() and not console.is_dumb_terminal


def as_html(renderable: RenderableType) -> str:
    """Return a console's rendering as HTML, for a notebook, which shows it: rich does not."""
    console = _Console(file=StringIO(), record=True, width=100, force_jupyter=False)
    console.print(renderable)
    layout = '<pre style="font-family: monospace; line-height: 1.3">{code}</pre>'
    return console.export_html(inline_styles=True, code_format=layout)


def print_text(text: str | Text, console: Console) -> None:
    """Print lines of text, which break between words on a terminal only."""
    shown = Text(text) if isinstance(text, str) else text  # a str would be read as markup
    console.print(shown, soft_wrap=not console.file.isatty())


def print_rows(rows: Sequence[tuple[str, str]], console: Console) -> None:
    """Print names and values, aligned and wrapped on a terminal, one plain line each in a pipe."""
    width = max(len(name) for name, _ in rows)
    if not console.file.isatty():
        for name, text in rows:
            print_text(f"{name:{width}}  {text}".rstrip(), console)
        return
    if 2 * width > console.width:  # no room beside the names
        for name, text in rows:
            console.print(Text(name, "dim"), Padding(Text(text), (0, 0, 0, 2)), sep="\n")
        return
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(Text(printable(name)), Text(printable(text)))
    console.print(table)


def number_table(headings: Iterable[str], title: str = "", gap: int = 2) -> Table:
    """Return an empty table of numbers; a column without a heading is for names."""
    table = Table(title=title or None, title_justify="left", box=None, padding=(0, gap, 0, 0))
    table.title_style = "bold"
    for heading in headings:
        side = "right" if heading else "left"
        table.add_column(heading, justify=side, overflow="fold", vertical="bottom")
    return table


def word_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table of texts; the first column, which names the rows, is not wrapped."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, overflow="fold", no_wrap=heading == headings[0])
    for row in rows:
        table.add_row(*map(Text, row))
    return table


class WordWrap:
    """Breaks a text that comes in pieces into lines of at most `width` columns, between words.

    A word waits for its end; one that is wider than a line is broken. Scripts that are written
    without spaces, such as Chinese, may break before any of their wide characters.
    """

    def __init__(self, width: int):
        self._width = max(width, 1)
        self._column = 0
        self._spaces, self._word = "", ""

    def push(self, text: str) -> str:
        """Return the characters that can be shown after `text`."""
        return "".join(map(self._add, text))

    def _add(self, character: str) -> str:
        if character == "\n":
            shown, self._column, self._spaces = self.rest() + "\n", 0, ""
        elif character.isspace():
            shown = self.rest()
            self._spaces += "    " if character == "\t" else character
        else:
            is_wide = cell_len(character) > 1 and self._word[-1:] != "\u200d"  # which joins emojis
            is_full = cell_len(self._word + character) > self._width
            shown = self.rest() if is_wide or is_full else ""
            self._word += character
        return shown

    def rest(self) -> str:
        """Return the waiting word and the spaces before it."""
        word, spaces = self._word, self._spaces
        if not word:
            return ""
        self._word = self._spaces = ""
        width, room = cell_len(word), self._width - self._column
        if self._column and len(spaces) + width > room:
            self._column = width
            return "\n" + word
        self._column += len(spaces) + width
        return spaces + word


def print_stream(texts: Iterable[str], console: Console) -> None:
    """Print a text as it comes, and a newline, even if interrupted.

    Its lines end between words on a terminal, where control characters are pictures; elsewhere it
    is written as it is.
    """
    at_terminal, wrap = console.file.isatty(), WordWrap(console.width)
    try:
        for text in texts:
            console.file.write(wrap.push(printable(text)) if at_terminal else text)
            console.file.flush()
    finally:
        console.file.write(wrap.rest() + "\n")
        console.file.flush()


def discard_unread() -> None:
    """Discard further output to standard streams that are pipes.

    Call this once the reader of one is gone; the system does not report which one.
    """
    for stream in (sys.stdout, sys.stderr):
        if stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
