"""The two errors a user may meet; each message is one line that says what to do.

The library raises them, the command line prints them, through `printable`. Any other exception that
escapes is a bug.
"""

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

Row = TypeVar("Row")


class ConfigError(ValueError):
    """A setting, or a combination of settings, that cannot work."""


class RunError(RuntimeError):
    """The world was not as needed: a file, the network, a disk, a damaged checkpoint."""


def did_you_mean(wanted: str, names: Iterable[str]) -> str:
    """The hint after an unknown name: the closest known one, or all of them."""
    names = list(names)
    close = difflib.get_close_matches(wanted, names, n=1, cutoff=0.5)
    return f": did you mean '{close[0]}'?" if close else f": choose from {', '.join(names)}"


def plural(number: float, noun: str) -> str:
    """A number of things: 1 seed, 5 seeds, 2.5 minutes."""
    return f"{number:.15g} {noun}{'' if number == 1 else 's'}"


def find_row(table: Mapping[str, Row], name: str, kind: str) -> Row:
    """The row of a table by name; capitals are small letters, underscores are hyphens.

    Raises:
        ConfigError: "unknown {kind} '{name}'", and the nearest name.
    """
    wanted = name.strip().lower().replace("_", "-")
    if wanted in table:
        return table[wanted]
    raise ConfigError(f"unknown {kind} '{name}'{did_you_mean(wanted, table)}")


_CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
_PICTURES = (
    _CONTROLS | {127: 0x2421} | dict.fromkeys([*range(0x80, 0xA0), *range(0xD800, 0xE000)], 0xFFFD)
)


def printable(text: str) -> str:
    """Text whose control characters are pictures: no file or model must steer a terminal."""
    return text.translate(_PICTURES)
