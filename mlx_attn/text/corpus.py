"""The prepared corpus: a text as token ids on disk, ready to be mapped into memory.

A corpus is prepared once for each content, tokenizer and vocabulary size, in a folder of the data
directory named by the digest of these. `tokens` are raw uint16 without a header, so that they are
adopted without a copy; `corpus.json` is written last and says how long each array must be. Whatever
is missing or of another length is made again.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int64, UInt8, UInt16

from mlx_attn.errors import RunError
from mlx_attn.files import replacing, write_text
from mlx_attn.text.documents import byte_offsets, token_abilities
from mlx_attn.text.downloads import Progress, data_directory
from mlx_attn.text.sources import Passage, Source, read_source
from mlx_attn.text.tokenizers import TRAINED, Tokenizer, load_tokenizer, train_tokenizer
from mlx_attn.text.tokenizers.symbols import SymbolTokenizer

if TYPE_CHECKING:
    from mlx_attn.text.tales import TalesText

_FORMAT = 1
_DTYPES = {
    "tokens": np.uint16,
    "document_starts": np.int64,
    "token_abilities": np.uint8,
    "scored": np.uint8,
}


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

    Raises:
        ConfigError: The tokenizer or its vocabulary size cannot work.
        RunError: The text cannot be read, or the data directory cannot be written.
    """
    directory = directory or data_directory()
    text = read_source(source, directory, n_bytes, val_bytes, progress)
    tokenizer = tokenizer if text.symbols is None else SymbolTokenizer.kind
    settings = (_FORMAT, text.digest, tokenizer, vocab_size if tokenizer in TRAINED else None)
    folder = directory / "prepared" / _digest(repr(settings))
    if corpus := _open(folder, text):
        return corpus
    _build(folder, text, _train(tokenizer, text, vocab_size, directory))
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
        field: _map(folder / f"{name}.{field}.bin", _DTYPES[field], length)
        for field, length in known["lengths"].items()
    }
    return Split(**arrays, **known["facts"])


def _map(path: Path, dtype: type[np.generic], length: int) -> np.ndarray:
    expected = length * np.dtype(dtype).itemsize
    if path.stat().st_size != expected:
        raise ValueError(f"{path}: {path.stat().st_size} bytes, not {expected}")
    return np.memmap(path, dtype, "r", shape=(length,))


def _train(kind: str, source: Source, vocab_size: int, directory: Path) -> Tokenizer:
    if source.symbols is not None:
        return SymbolTokenizer(source.symbols)
    text = source.train.text + (source.val.text if kind == "char" else "")
    return train_tokenizer(kind, text, vocab_size, directory)


def _build(folder: Path, source: Source, tokenizer: Tokenizer) -> None:
    tokenizer.save(folder)
    splits = {
        name: _build_split(folder, name, passage, tokenizer)
        for name, passage in (("train", source.train), ("val", source.val))
    }
    write_text(folder / "corpus.json", json.dumps(splits, indent=1) + "\n")


def _build_split(
    folder: Path, name: str, passage: Passage, tokenizer: Tokenizer
) -> dict[str, dict[str, Any]]:
    arrays, facts = _tokenize(passage, tokenizer)
    for field, array in arrays.items():
        with replacing(folder / f"{name}.{field}.bin") as temporary:
            array.astype(_DTYPES[field], copy=False).tofile(temporary)
    return {"lengths": {field: len(array) for field, array in arrays.items()}, "facts": facts}


def _tokenize(
    passage: Passage, tokenizer: Tokenizer
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays of a split, and the facts that go beside them."""
    if documents := passage.documents:
        return documents.arrays(), documents.facts()
    tokens = tokenizer.encode(passage.text)
    arrays = {"tokens": tokens}
    facts: dict[str, Any] = {"n_bytes": len(passage.text.encode())}
    if tales := passage.tales:
        offsets = byte_offsets(tokenizer, tokens)
        # The newline that opens the stream is like the one that ends it, and moves all by a byte.
        abilities = np.roll(np.append(tales.abilities, tales.abilities[-1]), 1)
        arrays["document_starts"] = np.searchsorted(offsets, tales.story_starts)
        arrays["token_abilities"] = token_abilities(tokenizer, tokens, offsets, abilities)
        facts |= _floors(tales)
    return arrays, facts


def _floors(tales: "TalesText") -> dict[str, Any]:
    from mlx_attn.text.tales import ABILITIES

    nats = (0.0 - tales.ability_log_probability).tolist()  # never -0.0
    return {
        "floor_nats": -tales.log_probability,
        "ability_floor_nats": dict(zip(ABILITIES, nats, strict=True)),
    }


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
