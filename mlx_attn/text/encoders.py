"""Tokenizing in this process or in several: what is asked for is promised, and made meanwhile."""

import contextlib
import functools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from pathlib import Path

import numpy as np
from jaxtyping import UInt16

from mlx_attn.errors import ConfigError, RunError
from mlx_attn.text.tokenizers import Tokenizer, load_tokenizer

WORKERS = "MLX_ATTN_WORKERS"
"""The environment variable that says how many processes tokenize a long text."""

MOST_WORKERS = 8  # by default: of about 60 MB each
_SHORT = 8_000_000  # bytes of text that are tokenized before another process has started

Promise = Callable[[], UInt16[np.ndarray, " N"]]
"""Waits for tokens."""


@dataclass(frozen=True)
class Encode:
    """Starts to tokenize a text.

    Attributes:
        start: From a text to the promise of its tokens.
        ahead: How many promises are worth having at a time.
    """

    start: Callable[[str], Promise]
    ahead: int = 0

    def __call__(self, text: str) -> Promise:
        """The promise of the tokens of `text`."""
        return self.start(text)


def worker_count(n_bytes: int) -> int:
    """How many processes tokenize a text: one a core, or as many as `MLX_ATTN_WORKERS` says.

    A short text is tokenized in this process, which counts as one.

    Raises:
        ConfigError: The variable is no positive whole number.
    """
    chosen = os.environ.get(WORKERS, "")
    if chosen and not (chosen.isascii() and chosen.isdigit() and int(chosen)):
        raise ConfigError(f"{WORKERS}={chosen} must be a whole number of processes, 1 or more")
    count = int(chosen) if chosen else min(os.cpu_count() or 1, MOST_WORKERS)
    return count if n_bytes > _SHORT else 1


@contextlib.contextmanager
def encoding(tokenizer: Tokenizer, folder: Path, workers: int) -> Iterator[Encode]:
    """A way to tokenize texts with a tokenizer that is saved in `folder`.

    Raises:
        RunError: A process was ended from outside.
    """
    if workers == 1:
        yield Encode(lambda text: functools.partial(tokenizer.encode, text))
        return
    spawn = get_context("spawn")
    pool = ProcessPoolExecutor(workers, spawn, initializer=_begin, initargs=(folder,))
    try:
        yield Encode(lambda text: pool.submit(_encode, text).result, ahead=2 * workers)
    except BrokenProcessPool as error:
        raise RunError(
            f"one of {workers} processes that tokenize has ended, perhaps for want of memory (in a "
            'script it starts from, the call must be under `if __name__ == "__main__":`): run this '
            f"again to go on where it stopped, with {WORKERS}=1 if need be"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


_tokenizers: list[Tokenizer] = []
"""In a worker: its tokenizer."""


def _begin(folder: Path) -> None:
    """Readies a worker. It leaves Ctrl-C to its parent, and ends when that does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _tokenizers.append(load_tokenizer(folder))


def _end_with_parent() -> None:
    if parent := parent_process():
        parent.join()
        os._exit(1)


def _encode(text: str) -> UInt16[np.ndarray, " N"]:
    return _tokenizers[0].encode(text)
