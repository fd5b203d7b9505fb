"""Ctrl-C in two steps: the first asks for an orderly end, the second ends at once."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

Asked = Callable[[], bool]

INTERRUPTED = 130
"""Exit code of a command that was interrupted."""


@contextmanager
def orderly(announce: Callable[[], None]) -> Iterator[Asked]:
    """Catch SIGINT and SIGTERM; gives a function that says whether one came.

    Args:
        announce: Called once, at the first signal.

    Raises:
        KeyboardInterrupt: At the second signal.
    """
    signals: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        if len(signals) > 1:
            raise KeyboardInterrupt
        # A stream cannot be written to while it is being written to, as to a pipe that is full.
        with suppress(RuntimeError):
            announce()

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(signals)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
