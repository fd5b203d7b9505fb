"""A corpus: a text, its tokenizer, and its tokens as read-only maps of files.

    prepared/DIGEST/
      tokenizer.*           the tokenizer
      train.tokens.npy      uint16, and the same for `val`
      train.*.npy           other arrays, by field of `Split`
      corpus.json           facts about the splits, and a checksum of these and of all files

`corpus.json` is written last, so a folder without it is an interrupted preparation, which the next
one replaces.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from jaxtyping import Int64, UInt8, UInt16

from mlx_attn.errors import ConfigError, RunError
from mlx_attn.files import atomic_write, digest, lock, make_directory, user_path, write_text
from mlx_attn.records import Object, read_record
from mlx_attn.text import characters, sources, tokenizers
from mlx_attn.text.downloads import data_directory
from mlx_attn.text.stories import ABILITIES, StoryCorpus
from mlx_attn.text.tokenizers import Tokenizer

_FORMAT = 3
_DTYPES = {
    "tokens": np.uint16,
    "document_starts": np.int64,
    "token_abilities": np.uint8,
    "scored": np.uint8,
}


@dataclass(frozen=True)
class Split:
    """One half of a corpus; the arrays are read-only maps of files."""

    tokens: UInt16[np.ndarray, " N"]
    n_bytes: int  # UTF-8 bytes of the tokens; the divisor of bits per byte
    # Stories and tasks: the index of the newline token before each document, so that a window that
    # starts there predicts the document's first token; the ability that each token calls for, in
    # stories its first byte that is not a space, as an index into their `ABILITIES`; -log p of all
    # scored tokens, in nats, which no model beats on average; the same by ability.
    document_starts: Int64[np.ndarray, " D"] | None = None
    token_abilities: UInt8[np.ndarray, " N"] | None = None
    floor_nats: float | None = None
    ability_floor_nats: Mapping[str, float] | None = None
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
    notes: tuple[str, ...] = ()  # about the reading of the text: files left out, line ends
    fingerprint: str = ""  # of the text and its tokenizer


def prepare(
    source: str, tokenizer: str = "char", vocab_size: int = 512, directory: Path | None = None
) -> Corpus:
    """Return the corpus that `source` names, from the data directory when it was prepared before.

    Args:
        source: See `sources.read_source`.
        tokenizer: One of `tokenizers.KINDS`. `char` takes its vocabulary from the whole text, the
            trained ones from the training split. A task brings its own and ignores this. Or a
            directory with a tokenizer, such as a run's.
        vocab_size: For the trained tokenizers, the most tokens they may use.
        directory: The data directory; `downloads.data_directory()` by default.

    Raises:
        ConfigError: The tokenizer or its vocabulary size cannot work.
        RunError: The text cannot be read, or the data directory cannot be written.
    """
    directory = directory or data_directory()
    origin = sources.read_source(source, directory)
    kind = tokenizer if origin.symbols is None else characters.SymbolTokenizer.kind
    trained_size = vocab_size if kind in tokenizers.TRAINED else None
    identity = repr((_FORMAT, origin.digest, _identity(kind), trained_size))
    folder = directory / "prepared" / digest(identity.encode())
    try:
        make_directory(folder)
    except RunError as error:
        raise RunError(f"{error} with MLX_ATTN_DATA_DIR") from error
    with lock(folder, wait=True):
        try:
            return _open(folder, origin)
        except (OSError, ValueError, RunError):  # missing or damaged
            _build(folder, origin, kind, vocab_size)
            return _open(folder, origin)


def read_split(source: sources.Source, tokenizer: Tokenizer, validation: bool) -> Split:
    """Return the tokens of a text, all of it or its validation part, in a model's own tokenizer.

    Raises:
        ConfigError: The tokenizer cannot express the text.
    """
    if source.symbols is not None and getattr(tokenizer, "symbols", ()) != tuple(source.symbols):
        raise ConfigError(f"{source.name}: only a model that was trained on this task reads it")
    part = source.splits()[1] if validation else sources.SplitText(source.text)
    arrays, facts = _tokenized(part, tokenizer)
    return Split(**arrays, **facts)


_TOKENIZER_FILES = ("tokenizer.*", "merges.txt", "vocab.*", "encoder.json")


def _identity(kind: str) -> str:
    """Return a kind's name; of a tokenizer's file or directory, a digest of its files."""
    path = user_path(kind)
    files = [path] if path.is_file() else [f for name in _TOKENIZER_FILES for f in path.glob(name)]
    files = sorted(files) if kind not in tokenizers.KINDS else []
    return digest(b"".join(file.read_bytes() for file in files)) if files else kind


class _Record(msgspec.Struct):
    """The content of `corpus.json`; the facts of each split are further fields of `Split`."""

    facts: dict[str, Object]
    checksum: str


def _open(folder: Path, source: sources.Source) -> Corpus:
    """Return a prepared corpus; an error unless every file is as it was written."""
    record = read_record(folder / "corpus.json", _Record)
    if record.checksum != _checksum(folder, record.facts):
        raise ValueError(f"{folder}: damaged")
    splits: dict[str, Split] = {}
    for name, facts in record.facts.items():
        paths = filter(Path.is_file, (folder / f"{name}.{field}.npy" for field in _DTYPES))
        arrays = {path.name.split(".")[1]: np.load(path, mmap_mode="r") for path in paths}
        splits[name] = Split(**arrays, **facts)
    tokenizer = tokenizers.load_tokenizer(folder)
    return Corpus(
        source.name, source.digest, tokenizer, **splits, notes=source.notes, fingerprint=folder.name
    )


def _checksum(folder: Path, facts: Mapping[str, Object]) -> str:
    """Return a digest of a corpus: its facts, its tokenizer and its arrays."""
    content = [json.dumps(facts, sort_keys=True)]
    for path in sorted([*folder.glob("tokenizer.*"), *folder.glob("[!.]*.npy")]):  # hidden: a Mac's
        with path.open("rb") as file:
            content.append(hashlib.file_digest(file, "blake2b").hexdigest())
    return digest("".join(content).encode())


def _build(folder: Path, source: sources.Source, kind: str, vocab_size: int) -> None:
    """Write the files of a corpus; `corpus.json`, which vouches for the others, comes last."""
    train, val = source.splits()
    if source.symbols is not None:
        tokenizer = characters.SymbolTokenizer(source.symbols)
    elif kind not in tokenizers.KINDS and user_path(kind).exists():
        tokenizer = tokenizers.load_tokenizer(user_path(kind))
    else:
        text = train.text + val.text if kind == "char" else train.text
        tokenizer = tokenizers.train_tokenizer(kind, text, vocab_size, folder.parents[1])
    tokenizer.save(folder)
    facts: dict[str, Object] = {}
    for name, split in (("train", train), ("val", val)):
        arrays, facts[name] = _tokenized(split, tokenizer)
        for field, array in arrays.items():
            path = folder / f"{name}.{field}.npy"
            with atomic_write(path) as temporary, temporary.open("wb") as file:
                np.save(file, array.astype(_DTYPES[field], copy=False))
    record = {"facts": facts, "checksum": _checksum(folder, facts)}
    write_text(folder / "corpus.json", json.dumps(record, indent=1) + "\n")


def _tokenized(split: sources.SplitText, tokenizer: Tokenizer) -> tuple[dict[str, Any], Object]:
    """Return the arrays and the other facts of a split, by field of `Split`."""
    if split.documents:
        return split.documents.arrays(), split.documents.facts()
    arrays = {"tokens": tokenizer.encode(split.text)}
    facts: Object = {"n_bytes": len(split.text.encode())}
    if split.stories:
        story_arrays, floors = _story_facts(split.stories, arrays["tokens"], tokenizer)
        return arrays | story_arrays, facts | floors
    return arrays, facts


def _story_facts(
    stories: StoryCorpus, tokens: UInt16[np.ndarray, " N"], tokenizer: Tokenizer
) -> tuple[dict[str, np.ndarray], Object]:
    """Return where stories start, the ability that each token calls for, and the floors in nats."""
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
        "floor_nats": -float(stories.ability_log_probability.sum()),
        "ability_floor_nats": dict(zip(ABILITIES, nats, strict=True)),
    }
