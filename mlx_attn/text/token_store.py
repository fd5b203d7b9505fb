"""A long text as tokens on disk, encoded by several processes."""

import contextlib
import functools
import hashlib
import json
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from itertools import accumulate, chain
from multiprocessing import get_context, parent_process
from pathlib import Path

import numpy as np
from jaxtyping import UInt16

from mlx_attn.errors import ConfigError, RunError
from mlx_attn.files import unwritable, write_text
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


_TOKEN = np.dtype(np.uint16)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A tokenized chunk: BLAKE2b of its UTF-8 in hexadecimal, its bytes, its tokens."""

    digest: str
    n_bytes: int
    n_tokens: int


class TokenFile:
    """The tokens of one split.

    Args:
        folder: The folder of the corpus.
        name: `train` or `val`.
    """

    def __init__(self, folder: Path, name: str):
        self.path = folder / f"{name}.tokens.bin"
        self._record = folder / f"{name}.chunks.jsonl"

    def chunks(self) -> list[Chunk]:
        """The chunks whose tokens are in the file, in order."""
        found: list[Chunk] = []
        with contextlib.suppress(OSError, ValueError, TypeError):  # as far as it can be read
            room = self.path.stat().st_size // _TOKEN.itemsize
            for line in self._record.read_text(encoding="utf-8").splitlines():
                chunk = Chunk(**json.loads(line))
                room -= chunk.n_tokens
                if room < 0:
                    break
                found.append(chunk)
        return found

    def promises(self) -> dict[str, Promise]:
        """By the digest of each chunk in the file, how to get its tokens."""
        chunks = self.chunks()
        starts = accumulate((chunk.n_tokens for chunk in chunks), initial=0)
        return {
            chunk.digest: lambda start=start, count=chunk.n_tokens: self._read(start, count)
            for chunk, start in zip(chunks, starts, strict=False)
        }

    def _read(self, start: int, count: int) -> UInt16[np.ndarray, " N"]:
        return np.fromfile(self.path, _TOKEN, count, offset=start * _TOKEN.itemsize)

    def write(
        self,
        texts: Iterable[str],
        encode: Encode,
        known: Mapping[str, Promise],
        report: Callable[[int], None],
    ) -> list[Chunk]:
        """Makes the file that of `texts`, keeping what it holds of them already.

        Args:
            texts: The chunks of the split.
            encode: Tokenizes one.
            known: By digest, tokens that need not be made.
            report: Called with the bytes of each chunk once it is in the file.

        Raises:
            RunError: The file cannot be written, or a text cannot be read.
        """
        texts = iter(texts)
        chunks, rest = self._kept(texts, report)
        with self._appending(chunks) as append:
            for chunk, tokens in _in_order(rest, encode, known):
                append(chunk, tokens)
                chunks.append(chunk)
                report(chunk.n_bytes)
        return chunks

    def _kept(
        self, texts: Iterator[str], report: Callable[[int], None]
    ) -> tuple[list[Chunk], Iterator[str]]:
        """The chunks that the file begins with as it should, and the texts that come after."""
        kept: list[Chunk] = []
        for chunk in self.chunks():
            text = next(texts, "")
            if _digest(text.encode()) != chunk.digest:
                return kept, chain([text] if text else [], texts)
            kept.append(chunk)
            report(chunk.n_bytes)
        return kept, texts

    @contextlib.contextmanager
    def _appending(
        self, kept: list[Chunk]
    ) -> Iterator[Callable[[Chunk, UInt16[np.ndarray, " N"]], None]]:
        write_text(self._record, "".join(map(_line, kept)))
        try:
            with self.path.open("ab") as data, self._record.open("a", encoding="utf-8") as record:
                data.truncate(sum(chunk.n_tokens for chunk in kept) * _TOKEN.itemsize)

                def append(chunk: Chunk, tokens: UInt16[np.ndarray, " N"]) -> None:
                    data.write(tokens.tobytes())
                    data.flush()
                    os.fsync(data.fileno())  # before the line that vouches for it
                    record.write(_line(chunk))
                    record.flush()

                yield append
        except OSError as error:
            raise unwritable(self.path, error) from error


def _in_order(
    texts: Iterator[str], encode: Encode, known: Mapping[str, Promise]
) -> Iterator[tuple[Chunk, UInt16[np.ndarray, " N"]]]:
    """The tokens of each text in turn, while the next ones are being made."""
    waiting: deque[tuple[str, int, Promise]] = deque()
    for text in texts:
        data = text.encode()
        digest = _digest(data)
        waiting.append((digest, len(data), known.get(digest) or encode(text)))
        if len(waiting) > encode.ahead:
            yield _fulfilled(*waiting.popleft())
    while waiting:
        yield _fulfilled(*waiting.popleft())


def _fulfilled(
    digest: str, n_bytes: int, promise: Promise
) -> tuple[Chunk, UInt16[np.ndarray, " N"]]:
    tokens = promise()
    return Chunk(digest, n_bytes, len(tokens)), tokens


def _line(chunk: Chunk) -> str:
    return json.dumps(asdict(chunk)) + "\n"


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
