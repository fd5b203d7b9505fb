"""What to do about a failure of MLX: advice for each message that a user may meet.

The messages come from MLX 0.32.4 and Metal. This module does not import MLX, because one of the
failures happens during that import. The first row that fits wins, so a special message precedes a
general one with the same words.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from mlx_attn.errors import RunError

_SMALLER = "use a smaller batch_size with accumulate, a shorter context_length or a smaller model"

ADVICE: dict[tuple[str, ...], str] = {
    ("No Metal device", "Failed to load device"): (
        "this process cannot use the Mac's GPU, as in a remote login or a virtual machine: use "
        "--device cpu"
    ),
    ("Resource limit",): (
        "Metal can hold no more arrays at a time (a limit on their number, not on bytes): use "
        "--compile on, fewer micro-batches with accumulate, or --device cpu"
    ),
    ("maximum allowed buffer size",): (
        f"one array is larger than the largest that Metal allows: {_SMALLER}"
    ),
    ("GPU Timeout", "CallbackErrorTimeout"): (
        f"macOS ended work that kept the GPU busy for too long: {_SMALLER}"
    ),
    ("Impacting Interactivity",): (
        "macOS ended the GPU's work because the screen had to wait: use a smaller batch_size with "
        "accumulate, and close other programs that use the GPU"
    ),
    ("GPU Hang", "CallbackErrorHang"): (
        "the GPU stopped answering: run the command again (a training with --resume), and if this "
        "happens again, with --device cpu"
    ),
    ("malloc", "allocate", "Insufficient Memory"): f"out of memory: {_SMALLER}",
    ("No space left", "Disk quota", "filesystem error", "Could not load C++ shared library"): (
        "MLX compiles to the folder mlx in TMPDIR or /tmp: free space there, delete it if damaged, "
        "let TMPDIR name a folder to write and run programs in, or set MLX_DISABLE_COMPILE=1"
    ),
    ("Failed to compile", "Failed to load compiled function"): (
        "MLX cannot compile for the processor here: install g++ with its headers, or set "
        "MLX_DISABLE_COMPILE=1"
    ),
}
"""What to do, by words of MLX's message."""


def advice_about(error: BaseException) -> str:
    """Return what to do and MLX's message, in one line; "" for any other error."""
    line = " ".join(str(error).split())
    fitting = (advice for words, advice in ADVICE.items() if any(word in line for word in words))
    return next((f"{advice} ({line})" for advice in fitting), "")


@contextmanager
def translate_mlx_errors() -> Iterator[None]:
    """Raise a known failure of MLX as a `RunError` with advice; others pass."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, RunError) or not (line := advice_about(error)):
            raise
        raise RunError(line) from error
