"""A download's progress as a few lines."""

from collections.abc import Callable

from mlx_attn.show.quantities import memory


def download_lines(say: Callable[[str], None]) -> Callable[[int, int | None], None]:
    """A callback for bytes done and in all, which says a line at every tenth of the way."""
    said = -1

    def progress(done: int, total: int | None) -> None:
        nonlocal said
        tenth = 10 * done // total if total else done // 10_000_000
        if tenth > said:
            said = tenth
            of = f" of {memory(total)}" if total else ""
            say(f"downloading: {memory(done)}{of}")

    return progress
