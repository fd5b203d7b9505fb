"""The two errors a user may meet; each message is one line that explains what to do.

The library raises them, the command line prints them, through `printable`. Any other exception that
escapes is a bug.
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, TypeVar

Row = TypeVar("Row")


class _OneLine(Exception):
    """An error with one line of text.

    Args:
        message: The mistake and the remedy, with the command line's flags.
        python: The same for a script, if its words are others than the flags without hyphens.
    """

    def __init__(self, message: str = "", python: str = ""):
        super().__init__(message)
        self.python = python


_FLAG = re.compile(r"(?<!\S)--([a-z][a-z0-9-]*)(?: (?!out\b|alone\b)([\w./-]+)(?=[,;:)]|$))?")
"""A flag, for Python a keyword: --lr 0 is lr=0, "leave --lr out" is "leave lr out"."""


def _as_keyword(flag: re.Match[str]) -> str:
    name, value = flag[1].replace("-", "_"), flag[2]
    if value is None:
        return name
    return f"{name}={value if re.fullmatch(r'[0-9.]+', value) else repr(value)}"


class ConfigError(_OneLine, ValueError):
    """A setting, or a combination of settings, that cannot work."""


class RunError(_OneLine, RuntimeError):
    """A file, the network, a disk or a checkpoint was not as needed."""


def optional(library: str, without: str) -> Any:
    """Return a library that need not be installed; `without` is the error where it is not."""
    try:
        return import_module(library)
    except ImportError as error:
        # One with a path, or another name, is broken or lacks what it needs itself.
        is_missing = (error.name, error.path) == (library, None)
        raise RunError(without if is_missing else f"{library}: {error}") from error


@contextmanager
def python_words() -> Iterator[None]:
    """Reword the errors raised within for users of the Python API."""
    try:
        yield
    except (ConfigError, RunError) as error:
        error.args = (error.python or _FLAG.sub(_as_keyword, str(error)),)
        raise


def did_you_mean(wanted: str, names: Iterable[str]) -> str:
    """Return the hint after an unknown name: the closest known one, or all of them."""
    names = list(names)
    close = difflib.get_close_matches(wanted, names, n=1, cutoff=0.5)
    return f": did you mean '{close[0]}'?" if close else f": choose from {', '.join(names)}"


def plural(number: float, noun: str) -> str:
    """Return a number of things: 1 seed, 5 seeds, 2.5 minutes."""
    return f"{number:.15g} {noun}{'' if number == 1 else 's'}"


def find_row(table: Mapping[str, Row], name: str, kind: str) -> Row:
    """Return the row of a table by name, in any capitals; refuse another with the nearest name."""
    wanted = str(name).strip().lower().replace("_", "-")
    if wanted in table:
        return table[wanted]
    raise ConfigError(f"unknown {kind} '{name}'{did_you_mean(wanted, table)}")


LONGEST = 1200
"""Most characters of an error that is shown: one may quote a whole file."""


def one_line(error: object) -> str:
    """Return a message in one line, cut where it is too long to be read."""
    line = " ".join(str(error).split())
    return line if len(line) <= LONGEST else f"{line[:LONGEST]} ..."


_CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
_REVERSING = [*range(0x202A, 0x202F), *range(0x2066, 0x206A)]  # which no Arabic or Hebrew needs
_OTHERS = [*range(0x80, 0xA0), *range(0xD800, 0xE000), *_REVERSING]
_PICTURES = _CONTROLS | {127: 0x2421} | dict.fromkeys(_OTHERS, 0xFFFD)


def printable(text: str) -> str:
    """Return the text with pictures of control characters: no file may steer a terminal."""
    return text.translate(_PICTURES)


def visible(text: str) -> str:
    """Return the text with unprintable characters as their codes."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)
