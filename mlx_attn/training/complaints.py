"""Failures of MLX itself that a user can do something about, in one line that says what."""

from collections.abc import Iterator
from contextlib import contextmanager

from mlx_attn.errors import RunError

ADVICE: dict[tuple[str, ...], str] = {
    ("malloc", "allocate", "Insufficient Memory"): (
        "out of memory: use a smaller batch_size with accumulate, a shorter context_length or a "
        "smaller model"
    ),
    ("Could not load C++ shared library",): (
        "code that MLX compiled for the processor is damaged, as after an interruption: delete the "
        "folder of that file and try again, or use --compile off"
    ),
    ("Failed to compile", "Failed to load compiled function"): (
        "MLX cannot compile for the processor here: install g++ with its headers, or use "
        "--compile off"
    ),
}
"""What to do, by words of MLX's message."""


@contextmanager
def advised() -> Iterator[None]:
    """Turn a failure of MLX that we know into an error with advice; others pass.

    Raises:
        RunError: MLX failed in a way that is known.
    """
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, RunError):
            raise
        for words, advice in ADVICE.items():
            if any(word in str(error) for word in words):
                raise RunError(f"{advice} ({error})") from error
        raise
