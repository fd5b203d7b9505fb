"""A corpus: a text, its tokenizer, and its tokens as read-only maps of files.

Preparing one takes bounded memory, whatever the length of the text: chunks are tokenized by several
processes while their tokens are written in order. `corpus.json` is written last, so a folder
without it is an interrupted preparation, which the next one replaces.

    prepared/DIGEST/
      tokenizer.*           the tokenizer
      train.tokens.bin      uint16, and the same for `val`
      train.*.bin           other arrays of the split, by field
      corpus.json           lengths and checksums of the arrays, the tokenizer's digest, facts, and
                            a checksum of all these
"""

import contextlib
import hashlib
import json
import os
import signal
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from jaxtyping import Int64, UInt8, UInt16

from mlx_attn.errors import ConfigError, RunError
from mlx_attn.files import atomic_write, lock, user_path, write_text
from mlx_attn.records import Count, Object, as_record, read_record
from mlx_attn.text import characters, sources, subwords, tokenizers
from mlx_attn.text.downloads import Progress, data_directory
from mlx_attn.text.tokenizers import Tokenizer

if TYPE_CHECKING:
    from mlx_attn.text.stories.dataset import StoryCorpus

WORKERS = "MLX_ATTN_WORKERS"
"""The environment variable that sets how many processes tokenize a long text."""

_MOST_WORKERS = 8  # by default: of about 60 MB each
_SHORT = 8_000_000  # bytes of text that are tokenized before another process has started
_FORMAT = 2
_DTYPES = {
    "tokens": np.uint16,
    "document_starts": np.int64,
    "token_abilities": np.uint8,
    "scored": np.uint8,
}

_Encoded = Iterator[tuple[int, UInt16[np.ndarray, " N"]]]
"""Bytes and tokens of one chunk after the other."""


@dataclass(frozen=True)
class Split:
    """One half of a corpus; the arrays are read-only maps of files."""

    tokens: UInt16[np.ndarray, " N"]
    n_bytes: int  # UTF-8 bytes of the tokens; the divisor of bits per byte
    # Stories and tasks: the index of the newline token before each document, so that a window that
    # starts there predicts the document's first token.
    document_starts: Int64[np.ndarray, " D"] | None = None
    # Stories and tasks: the ability that each token calls for, as an index into their `ABILITIES`;
    # for stories, the ability of its first byte that is not a space.
    token_abilities: UInt8[np.ndarray, " N"] | None = None
    # Stories and tasks: -log p of all scored tokens, in nats; no model does better on average.
    floor_nats: float | None = None
    ability_floor_nats: Mapping[str, float] | None = None  # stories and tasks: the floor by ability
    # Tasks only: 1 for the tokens that count, else 0; in a text all but the first count.
    scored: UInt8[np.ndarray, " N"] | None = None

    @property
    def n_scored(self) -> int:
        """Tokens that count for the loss."""
        return len(self.tokens) - 1 if self.scored is None else int(self.scored.sum())

    @property
    def floor(self) -> float | None:
        """The lowest possible loss in nats per scored token, if it is known."""
        return None if self.floor_nats is None else self.floor_nats / self.n_scored


@dataclass(frozen=True)
class Corpus:
    """A text, its tokenizer, and its tokens for training and validation."""

    name: str
    digest: str
    tokenizer: Tokenizer
    train: Split
    val: Split


def prepare(
    source: str,
    tokenizer: str = "char",
    vocab_size: int = 512,
    directory: Path | None = None,
    n_bytes: int = 6_000_000,
    val_bytes: int = 200_000,
    progress: Progress | None = None,
    tokenizing: Progress | None = None,
) -> Corpus:
    """Return the corpus that `source` names, from the data directory when it was prepared before.

    Args:
        source: See `sources.read_source`.
        tokenizer: One of `tokenizers.KINDS`. `char` takes its vocabulary from the whole text, the
            trained ones from the training split. A task brings its own and ignores this. Or a
            directory with a tokenizer, such as a run's.
        vocab_size: For the trained tokenizers, the most tokens they may use.
        directory: The data directory; `downloads.data_directory()` by default.
        n_bytes: For stories, bytes of training text.
        val_bytes: For stories, bytes of validation text.
        progress: Called with the bytes done and in all while a corpus is downloaded.
        tokenizing: Called with the bytes done and in all while a text is tokenized.

    Raises:
        ConfigError: The tokenizer or its vocabulary size cannot work.
        RunError: The text cannot be read, the data directory cannot be written, or a process that
            tokenizes was killed.
    """
    directory = directory or data_directory()
    origin = sources.read_source(source, directory, n_bytes, val_bytes, progress)
    kind = tokenizer if origin.symbols is None else characters.SymbolTokenizer.kind
    trained_size = vocab_size if kind in tokenizers.TRAINED else None
    name = _digest(repr((_FORMAT, origin.digest, _identity(kind), trained_size)).encode())
    folder = directory / "prepared" / name
    if corpus := _open(folder, origin):
        return corpus
    with lock(folder):
        if corpus := _open(folder, origin):  # another process was quicker
            return corpus
        _build(folder, origin, kind, vocab_size, tokenizing)
        if corpus := _open(folder, origin):
            return corpus
    raise RunError(f"{folder}: the prepared corpus does not read back; check the disk")


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _identity(kind: str) -> str:
    """Return a kind's name; of a directory with a tokenizer, a digest of its files."""
    files = sorted(user_path(kind).glob("tokenizer.*")) if kind not in tokenizers.KINDS else []
    return _digest(b"".join(file.read_bytes() for file in files)) if files else kind


def _open(folder: Path, source: sources.Source) -> Corpus | None:
    """Return the corpus prepared in `folder`; None if it is missing or damaged."""
    try:
        content = read_record(folder / "corpus.json")
        if content.pop("checksum", None) != _record_checksum(content):
            return None
        record = as_record(content, _Saved, str(folder))
        if record.tokenizer != _identity(str(folder)):
            return None
        tokenizer = tokenizers.load_tokenizer(folder)
        train = _open_split(folder, "train", record.train)
        val = _open_split(folder, "val", record.val)
    except (OSError, RunError, ValueError):
        return None
    if any(split.tokens.max(initial=0) >= tokenizer.vocab_size for split in (train, val)):
        return None
    return Corpus(source.name, source.digest, tokenizer, train, val)


class _Facts(msgspec.Struct):
    n_bytes: Count
    floor_nats: float | None = None
    ability_floor_nats: dict[str, float] | None = None


class _SavedSplit(msgspec.Struct):
    """A split's part of `corpus.json`: lengths and checksums of its arrays, and facts."""

    lengths: dict[str, Count]
    checksums: dict[str, Count]
    facts: _Facts


class _Saved(msgspec.Struct):
    tokenizer: str  # digest of its files
    train: _SavedSplit
    val: _SavedSplit


def _open_split(folder: Path, name: str, saved: _SavedSplit) -> Split:
    """Return the split as it was written; ValueError where a file of it is damaged."""
    arrays: dict[str, np.ndarray] = {}
    if {*saved.lengths} - {*_DTYPES} or "tokens" not in saved.lengths:
        raise ValueError(f"{folder}: other arrays than this version knows")
    for field, length in saved.lengths.items():
        path, dtype = folder / f"{name}.{field}.bin", np.dtype(_DTYPES[field])
        if (size := path.stat().st_size) != length * dtype.itemsize:
            raise ValueError(f"{path}: {size} bytes, not {length * dtype.itemsize}")
        arrays[field] = np.memmap(path, dtype, "r", shape=(length,))
        if zlib.crc32(arrays[field].data) != saved.checksums.get(field):
            raise ValueError(f"{path}: its numbers are not those that were written")
    return Split(**arrays, **msgspec.structs.asdict(saved.facts))


def _record_checksum(content: Object) -> int:
    """Return the CRC-32 of the content of `corpus.json`."""
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def _build(
    folder: Path, source: sources.Source, kind: str, vocab_size: int, progress: Progress | None
) -> None:
    """Write the files of a corpus; `corpus.json`, which vouches for the others, comes last."""
    train, val = source.splits()
    splits = {"train": train, "val": val}
    tokenizer = _make_tokenizer(source, splits, kind, vocab_size, folder.parent.parent)
    tokenizer.save(folder)
    done = 0

    def report(n_bytes: int) -> None:
        nonlocal done
        done += n_bytes
        if progress and source.n_bytes:
            progress(done, source.n_bytes)

    with encoder(tokenizer, folder, worker_count(source.n_bytes)) as encode:
        record: Object = {
            name: _write_split(folder, name, text, tokenizer, encode, report)
            for name, text in splits.items()
        }
    record["tokenizer"] = _identity(str(folder))
    record["checksum"] = _record_checksum(record)
    write_text(folder / "corpus.json", json.dumps(record, indent=1) + "\n")


def _make_tokenizer(
    source: sources.Source,
    splits: Mapping[str, sources.SplitText],
    kind: str,
    vocab_size: int,
    directory: Path,
) -> Tokenizer:
    """Return a tokenizer made from a bounded part of the text, whatever the text's length."""
    if source.symbols is not None:
        return characters.SymbolTokenizer(source.symbols)
    if kind not in tokenizers.KINDS and (user_path(kind) / "tokenizer.json").is_file():
        return tokenizers.load_tokenizer(user_path(kind))
    text = ""
    if kind == "char":
        text = "".join(set().union(*splits["train"].chunks(), *splits["val"].chunks()))
    elif kind in tokenizers.TRAINED:
        text = subwords.sample(splits["train"].chunks(), splits["train"].n_characters)
    return tokenizers.train_tokenizer(kind, text, vocab_size, directory)


def _write_split(
    folder: Path,
    name: str,
    text: sources.SplitText,
    tokenizer: Tokenizer,
    encode: Callable[[Iterable[str]], _Encoded],
    report: Callable[[int], None],
) -> Object:
    """Write the arrays of a split; return their lengths and checksums, and further facts."""
    arrays: dict[str, np.ndarray] = {}
    facts: Object = {"n_bytes": 0}
    if text.documents:
        arrays, facts = text.documents.arrays(), text.documents.facts()
    else:
        path = folder / f"{name}.tokens.bin"
        with atomic_write(path) as temporary, temporary.open("wb") as file:
            for n_bytes, chunk in encode(text.chunks()):
                file.write(chunk.tobytes())
                facts["n_bytes"] += n_bytes
                report(n_bytes)
    if text.stories:
        tokens = np.fromfile(folder / f"{name}.tokens.bin", np.uint16)
        arrays, floors = _story_arrays(text.stories, tokens, tokenizer)
        facts |= floors
    for field, array in arrays.items():
        with atomic_write(folder / f"{name}.{field}.bin") as temporary:
            array.astype(_DTYPES[field], copy=False).tofile(temporary)
    written = {
        field: np.memmap(folder / f"{name}.{field}.bin", _DTYPES[field], "r")
        for field in ("tokens", *(key for key in arrays if key != "tokens"))
    }
    return {
        "lengths": {field: len(array) for field, array in written.items()},
        "checksums": {field: zlib.crc32(array.data) for field, array in written.items()},
        "facts": facts,
    }


def _story_arrays(
    stories: "StoryCorpus", tokens: UInt16[np.ndarray, " N"], tokenizer: Tokenizer
) -> tuple[dict[str, np.ndarray], Object]:
    """Return where stories start, the ability that each token calls for, and the floors in nats."""
    from mlx_attn.text.stories.grammar import ABILITIES

    pieces = tokenizer.vocabulary
    lengths = np.array([len(piece) for piece in pieces])[tokens]
    offsets = np.cumsum(lengths) - lengths  # of each token's first byte
    # Leading spaces; a token of only spaces counts for itself.
    spaces = [len(piece) - len(piece.lstrip(b" ")) if piece.strip(b" ") else 0 for piece in pieces]
    # The newline that opens the stream is like the one that ends it, and moves all by a byte.
    abilities = np.roll(np.append(stories.abilities, stories.abilities[-1]), 1)
    arrays = {
        "document_starts": np.searchsorted(offsets, stories.story_starts),
        "token_abilities": abilities[offsets + np.array(spaces)[tokens]],
    }
    nats = (0.0 - stories.ability_log_probability).tolist()  # never -0.0
    return arrays, {
        "floor_nats": -stories.log_probability,
        "ability_floor_nats": dict(zip(ABILITIES, nats, strict=True)),
    }


def worker_count(n_bytes: int) -> int:
    """Return how many processes tokenize a text: one per core, or `MLX_ATTN_WORKERS`.

    A short text is tokenized in this process, which counts as one.
    """
    chosen = os.environ.get(WORKERS, "")
    if chosen and not (chosen.isascii() and chosen.isdigit() and int(chosen)):
        raise ConfigError(f"{WORKERS}={chosen} must be a whole number of processes, 1 or more")
    count = int(chosen) if chosen else min(os.cpu_count() or 1, _MOST_WORKERS)
    return count if n_bytes > _SHORT else 1


@contextlib.contextmanager
def encoder(
    tokenizer: Tokenizer, folder: Path, workers: int
) -> Iterator[Callable[[Iterable[str]], _Encoded]]:
    """Open a function that tokenizes chunks, in order, a few of them ahead in other processes."""
    if workers == 1:
        yield lambda chunks: ((len(chunk.encode()), tokenizer.encode(chunk)) for chunk in chunks)
        return
    spawn = get_context("spawn")
    pool = ProcessPoolExecutor(workers, spawn, initializer=_start_worker, initargs=(folder,))

    def in_order(chunks: Iterable[str]) -> _Encoded:
        pending: deque[tuple[int, Future[UInt16[np.ndarray, " N"]]]] = deque()
        for chunk in chunks:
            pending.append((len(chunk.encode()), pool.submit(_encode, chunk)))
            if len(pending) > 2 * workers:
                n_bytes, tokens = pending.popleft()
                yield n_bytes, tokens.result()
        for n_bytes, tokens in pending:
            yield n_bytes, tokens.result()

    try:
        yield in_order
    except BrokenProcessPool as error:
        raise RunError(
            f"one of {workers} processes that tokenize was killed, perhaps for lack of memory (in a"
            ' script it starts from, the call must be under `if __name__ == "__main__":`): run this'
            f" again, with {WORKERS}=1 if need be"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


_worker_tokenizer: list[Tokenizer] = []  # in a worker: its tokenizer


def _start_worker(folder: Path) -> None:
    """Load the tokenizer; leave Ctrl-C to the parent, and end when the parent does."""

    def end_with_parent() -> None:
        if parent := parent_process():
            parent.join()
            os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with_parent, daemon=True).start()
    _worker_tokenizer.append(tokenizers.load_tokenizer(folder))


def _encode(text: str) -> UInt16[np.ndarray, " N"]:
    return _worker_tokenizer[0].encode(text)
