"""Ctrl-C in two steps: the first asks for an orderly end, the second ends at once."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

Asked = Callable[[], bool]

INTERRUPTED = 130
"""Exit code of a command that was interrupted."""


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def orderly(announce: Callable[[], None]) -> Iterator[Asked]:
    """Catch Ctrl-C, SIGTERM and a closed terminal; gives a function that says whether one came.

    What the shell has us ignore stays ignored, such as the closed terminal under `nohup`.

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
        # A stream cannot be written to while it is being written to, as to a pipe that is full;
        # nor can a terminal that is closed.
        with suppress(RuntimeError, OSError):
            announce()

    heard = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, note) for number in heard}
    try:
        yield lambda: bool(signals)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
