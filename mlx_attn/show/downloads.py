"""What a text goes through before it is trained on, as a few lines: a download, tokenizing."""

from collections.abc import Callable

from mlx_attn.show.quantities import memory

LONG = 20_000_000
"""Bytes of text from which tokenizing takes long enough to speak of."""


def download_lines(say: Callable[[str], None]) -> Callable[[int, int | None], None]:
    """A callback for bytes done and in all, which says a line at every tenth of the way."""
    return _lines("downloading", say)


def tokenizing_lines(say: Callable[[str], None]) -> Callable[[int, int], None]:
    """A callback for bytes done and in all of a text, which is silent when that is short."""
    lines = _lines("tokenizing", say)
    return lambda done, total: lines(done, total) if total >= LONG else None


def _lines(doing: str, say: Callable[[str], None]) -> Callable[[int, int | None], None]:
    said = -1

    def progress(done: int, total: int | None) -> None:
        nonlocal said
        tenth = 10 * done // total if total else done // 10_000_000
        if tenth > said:
            said = tenth
            of = f" of {memory(total)}" if total else ""
            say(f"{doing}: {memory(done)}{of}")

    return progress
