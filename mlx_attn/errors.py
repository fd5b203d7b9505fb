"""The two errors a user may meet; each message is one line that says what to do.

The library raises them, the command line prints them. Anything else that escapes is a bug.
"""

import difflib
from collections.abc import Iterable


class ConfigError(ValueError):
    """A setting, or a combination of settings, that cannot work."""


class RunError(RuntimeError):
    """The world was not as needed: a file, the network, a disk, a damaged checkpoint."""


def did_you_mean(wanted: str, names: Iterable[str]) -> str:
    """What to say after an unknown name: the closest known one, or all of them."""
    names = list(names)
    close = difflib.get_close_matches(wanted, names, n=1, cutoff=0.5)
    return f": did you mean '{close[0]}'?" if close else f": choose from {', '.join(names)}"
