"""Ctrl-C in two steps: the first asks for an orderly end, the second ends at once."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

Asked = Callable[[], bool]


@contextmanager
def orderly(announce: Callable[[], None]) -> Iterator[Asked]:
    """Catch SIGINT and SIGTERM; gives a function that says whether one came.

    Args:
        announce: Called once, at the first signal.
    """
    signals: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if signals:
            raise KeyboardInterrupt
        signals.append(number)
        announce()

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(signals)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
