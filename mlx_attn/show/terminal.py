"""Consoles: progress and tables on stderr or stdout, plain where nobody looks at a terminal."""

from rich.console import Console


def stderr_console() -> Console:
    """For progress and messages; rich itself honours NO_COLOR and pipes."""
    return Console(stderr=True, highlight=False)


def stdout_console() -> Console:
    """For results."""
    return Console(highlight=False)
