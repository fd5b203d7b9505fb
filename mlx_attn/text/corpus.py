"""The prepared corpus: a text as token ids on disk, ready to be mapped into memory.

A corpus is prepared once for each content, tokenizer and vocabulary size, in a folder of the data
directory named by the digest of these (`text.preparation`). Whatever is missing there or of another
length than it must have is made again.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt8, UInt16

from mlx_attn.errors import RunError
from mlx_attn.files import alone_in
from mlx_attn.text.downloads import Progress, data_directory
from mlx_attn.text.preparation import DTYPES, build
from mlx_attn.text.sources import Source, read_source
from mlx_attn.text.tokenizers import TRAINED, Tokenizer, load_tokenizer
from mlx_attn.text.tokenizers.symbols import SymbolTokenizer

_FORMAT = 1


@dataclass(frozen=True)
class Split:
    """One half of a corpus; the arrays are read-only maps of files.

    Attributes:
        tokens: Token ids.
        n_bytes: UTF-8 bytes that the tokens stand for; what bits per byte divides by.
        document_starts: Tales and tasks: the index of the newline token before each document, so
            that a window that starts there predicts the document's first token.
        token_abilities: Tales and tasks: index into their `ABILITIES`; for the tales, of the span
            that holds the token's first byte that is not a space.
        floor_nats: Tales and tasks: -log p of all scored tokens, in nats; no model does better on
            average.
        ability_floor_nats: Tales and tasks: the floor, ability by ability.
        scored: Tasks only: 1 for the tokens that count, else 0; in a text all but the first count.
    """

    tokens: UInt16[np.ndarray, " N"]
    n_bytes: int
    document_starts: Int64[np.ndarray, " D"] | None = None
    token_abilities: UInt8[np.ndarray, " N"] | None = None
    floor_nats: float | None = None
    ability_floor_nats: Mapping[str, float] | None = None
    scored: UInt8[np.ndarray, " N"] | None = None

    @property
    def n_scored(self) -> int:
        """Tokens that count for the loss."""
        return len(self.tokens) - 1 if self.scored is None else int(self.scored.sum())

    @property
    def floor(self) -> float | None:
        """The least loss in nats per scored token, where it is known."""
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
    """The corpus that `source` names, from the data directory when it was prepared before.

    Args:
        source: What `sources.read_source` reads.
        tokenizer: One of `tokenizers.KINDS`. `char` takes its vocabulary from the whole text, the
            trained ones from the training split. A task has its own, whatever is said here.
        vocab_size: For the trained tokenizers, the most tokens they may use.
        directory: The data directory; `downloads.data_directory()` by default.
        n_bytes: For the tales, bytes of training text.
        val_bytes: For the tales, bytes of validation text.
        progress: Called with the bytes done and in all while a corpus is downloaded.
        tokenizing: Called with the bytes done and in all while a text is tokenized.

    Raises:
        ConfigError: The tokenizer or its vocabulary size cannot work.
        RunError: The text cannot be read, the data directory cannot be written, or a process that
            tokenizes was ended; what was done is kept, and the next call goes on from there.
    """
    directory = directory or data_directory()
    text = read_source(source, directory, n_bytes, val_bytes, progress)
    tokenizer = tokenizer if text.symbols is None else SymbolTokenizer.kind
    settings = (_FORMAT, text.digest, tokenizer, vocab_size if tokenizer in TRAINED else None)
    folder = directory / "prepared" / _digest(repr(settings))
    if corpus := _open(folder, text):
        return corpus
    with alone_in(folder):
        if corpus := _open(folder, text):  # another process was quicker
            return corpus
        build(folder, text, tokenizer, vocab_size, tokenizing)
    if corpus := _open(folder, text):
        return corpus
    raise RunError(f"{folder}: the prepared corpus does not read back; check the disk")


def _open(folder: Path, source: Source) -> Corpus | None:
    """The corpus prepared in `folder`; None when there is none or a file of it is damaged."""
    try:
        splits = json.loads((folder / "corpus.json").read_text(encoding="utf-8"))
        train, val = (_open_split(folder, name, splits[name]) for name in ("train", "val"))
        return Corpus(source.name, source.digest, load_tokenizer(folder), train, val)
    except (OSError, RunError, ValueError, KeyError, TypeError):
        return None


def _open_split(folder: Path, name: str, known: dict[str, Any]) -> Split:
    arrays = {
        field: _map(folder / f"{name}.{field}.bin", DTYPES[field], length)
        for field, length in known["lengths"].items()
    }
    return Split(**arrays, **known["facts"])


def _map(path: Path, dtype: type[np.generic], length: int) -> np.ndarray:
    expected = length * np.dtype(dtype).itemsize
    if path.stat().st_size != expected:
        raise ValueError(f"{path}: {path.stat().st_size} bytes, not {expected}")
    return np.memmap(path, dtype, "r", shape=(length,))


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
