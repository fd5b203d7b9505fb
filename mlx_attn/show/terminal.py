"""Consoles and streams: rich where somebody looks at a terminal, plain everywhere else."""

import os
import stat
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text


class _Console(Console):
    """A console that says when its reader is gone; rich's own would end the process."""

    def on_broken_pipe(self) -> None:
        # Called while a BrokenPipeError is handled.
        raise


def stderr_console() -> Console:
    """For progress and messages; rich itself honours NO_COLOR and pipes."""
    return _Console(stderr=True, highlight=False)


def stdout_console() -> Console:
    """For results."""
    return _Console(highlight=False)


def is_live(console: Console) -> bool:
    """Whether this is a terminal that can be redrawn, whatever FORCE_COLOR says."""
    return console.file.isatty() and not console.is_dumb_terminal


def print_rows(rows: Sequence[tuple[str, str]], console: Console) -> None:
    """Names and what they are: aligned and wrapped on a terminal, one plain line each in a pipe."""
    width = max(len(name) for name, _ in rows)
    if not console.file.isatty():
        for name, text in rows:
            console.print(Text(f"{name:{width}}  {text}".rstrip()), soft_wrap=True)
        return
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(Text(name), Text(text))
    console.print(table)


def discard_unread() -> None:
    """Send to nowhere what is still written to standard streams that are pipes.

    To be called once the reader of one is gone: which one, the system does not say.
    """
    for stream in (sys.stdout, sys.stderr):
        if stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
