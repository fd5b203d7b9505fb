"""Printing: every text that a command prints comes through here."""

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from mlx_attn.errors import printable


def say(text: object = "", err: bool = False, nl: bool = True, exact: bool = False) -> None:
    """Write a text for whoever reads it.

    Control characters are pictures: no file, name or model steers a terminal. An `exact` text, such
    as one that was asked for, is written as it is if no terminal shows it.
    """
    shown = str(text)
    click.echo(shown if exact and not sys.stdout.isatty() else printable(shown), err=err, nl=nl)


def note(*lines: str) -> None:
    """Print lines on stderr, which leaves stdout to the results."""
    for line in lines:
        if sys.stderr.isatty():
            width = shutil.get_terminal_size().columns
            line = textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
        say(line, err=True)


def emit(record: Any, as_json: bool, shown: Callable[[], Iterable[Any]] | None = None) -> None:
    """Print a result: a record as one JSON object, or for people the return value of `shown`.

    A path is a text in JSON. For people a text becomes a line, pairs of names and values become
    rows, and the rest are tables. Without `shown`, the record's keys and values become rows.
    """
    if as_json:
        say(json.dumps(record, default=os.fspath))
        return
    from rich.text import Text

    from mlx_attn.text.show import facts_rows
    from mlx_attn.ui.terminal import print_rows, print_text, stdout_console

    for part in shown() if shown else [facts_rows(record)]:
        if isinstance(part, str | Path):
            say(part)
        elif isinstance(part, list):
            print_rows(part, stdout_console())
        elif isinstance(part, Text):
            print_text(part, stdout_console())
        else:
            stdout_console().print(part)
