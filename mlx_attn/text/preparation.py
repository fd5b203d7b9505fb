"""From a text to the files of a prepared corpus.

`tokens` are raw uint16 without a header, so that they are adopted without a copy; `corpus.json` is
written last and says how long each array must be. A text is tokenized chunk by chunk (`chunks`), in
several processes if it is long (`encoders`), into a file that grows and is resumed (`token_file`).
"""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mlx_attn.errors import RunError
from mlx_attn.files import replacing, write_text
from mlx_attn.text.documents import byte_offsets, token_abilities
from mlx_attn.text.downloads import Progress
from mlx_attn.text.encoders import Promise, encoding, worker_count
from mlx_attn.text.sources import AnyPassage, Source
from mlx_attn.text.token_file import TokenFile
from mlx_attn.text.tokenizers import TRAINED, Tokenizer, load_tokenizer, train_tokenizer
from mlx_attn.text.tokenizers.subwords import sample
from mlx_attn.text.tokenizers.symbols import SymbolTokenizer

if TYPE_CHECKING:
    from mlx_attn.text.tales import TalesText

DTYPES = {
    "tokens": np.uint16,
    "document_starts": np.int64,
    "token_abilities": np.uint8,
    "scored": np.uint8,
}
"""The arrays of a split, and what they are on disk."""


def build(
    folder: Path, source: Source, kind: str, vocab_size: int, progress: Progress | None
) -> None:
    """Prepares a text in `folder`, from where an interrupted preparation left it.

    Args:
        folder: Beside it lie other prepared corpora, whose tokens are taken over where they fit.
        source: The text.
        kind: The tokenizer, one of `tokenizers.KINDS` or `symbols`.
        vocab_size: For the trained tokenizers, the most tokens they may use.
        progress: Called with the bytes of text done and in all.

    Raises:
        ConfigError: The tokenizer or its vocabulary size cannot work.
        RunError: The text cannot be read, the folder cannot be written, or a process that tokenizes
            was ended.
    """
    tokenizer = _tokenizer(folder, kind, source, vocab_size)
    known, report = _known_tokens(folder), _sum_of(source.n_bytes, progress)
    splits: dict[str, Any] = {}
    with encoding(tokenizer, folder, worker_count(source.n_bytes)) as encode:
        for name, passage in (("train", source.train), ("val", source.val)):
            if not passage.documents:
                TokenFile(folder, name).write(passage.chunks(), encode, known, report)
            splits[name] = _record(folder, name, passage, tokenizer)
    write_text(folder / "corpus.json", json.dumps(splits, indent=1) + "\n")


def _tokenizer(folder: Path, kind: str, source: Source, vocab_size: int) -> Tokenizer:
    """The tokenizer that an interrupted preparation left in the folder, or a new one."""
    try:
        return load_tokenizer(folder)
    except RunError:
        tokenizer = _trained(kind, source, vocab_size, directory=folder.parent.parent)
        tokenizer.save(folder)
        return tokenizer


def _trained(kind: str, source: Source, vocab_size: int, directory: Path) -> Tokenizer:
    """A tokenizer, from as much of the text as it takes: bounded, whatever the text's length."""
    if source.symbols is not None:
        return SymbolTokenizer(source.symbols)
    text = ""
    if kind == "char":
        text = "".join(set().union(*source.train.chunks(), *source.val.chunks()))
    elif kind in TRAINED:
        text = sample(source.train.chunks(), source.train.n_characters)
    return train_tokenizer(kind, text, vocab_size, directory)


def _sum_of(total: int, progress: Progress | None) -> Callable[[int], None]:
    """A callback for bytes that have been done, which calls `progress` with those so far."""
    done = 0

    def report(n_bytes: int) -> None:
        nonlocal done
        done += n_bytes
        if progress and total:
            progress(done, total)

    return report


def _known_tokens(folder: Path) -> dict[str, Promise]:
    """The tokens that the same tokenizer made before of any chunk of any text, by digest."""
    ours = (folder / "tokenizer.json").read_bytes()
    known: dict[str, Promise] = {}
    for theirs in folder.parent.glob("*/tokenizer.json"):
        with contextlib.suppress(OSError):
            if theirs.parent != folder and theirs.read_bytes() == ours:
                for name in ("train", "val"):
                    known |= TokenFile(theirs.parent, name).promises()
    return known


def _record(
    folder: Path, name: str, passage: AnyPassage, tokenizer: Tokenizer
) -> dict[str, dict[str, Any]]:
    """Writes what is known of a split beside its tokens; returns lengths and facts, by name."""
    lengths: dict[str, int] = {}
    if passage.documents:
        arrays, facts = passage.documents.arrays(), passage.documents.facts()
    else:
        file = TokenFile(folder, name)
        chunks = file.chunks()
        lengths["tokens"] = sum(chunk.n_tokens for chunk in chunks)
        arrays, facts = {}, {"n_bytes": sum(chunk.n_bytes for chunk in chunks)}
        if passage.tales:
            tokens = np.fromfile(file.path, DTYPES["tokens"])
            arrays = _arrays_of_tales(passage.tales, tokens, tokenizer)
            facts |= _floors(passage.tales)
    for field, array in arrays.items():
        with replacing(folder / f"{name}.{field}.bin") as temporary:
            array.astype(DTYPES[field], copy=False).tofile(temporary)
        lengths[field] = len(array)
    return {"lengths": lengths, "facts": facts}


def _arrays_of_tales(
    tales: "TalesText", tokens: np.ndarray, tokenizer: Tokenizer
) -> dict[str, np.ndarray]:
    offsets = byte_offsets(tokenizer, tokens)
    # The newline that opens the stream is like the one that ends it, and moves all by a byte.
    abilities = np.roll(np.append(tales.abilities, tales.abilities[-1]), 1)
    return {
        "document_starts": np.searchsorted(offsets, tales.story_starts),
        "token_abilities": token_abilities(tokenizer, tokens, offsets, abilities),
    }


def _floors(tales: "TalesText") -> dict[str, Any]:
    from mlx_attn.text.tales import ABILITIES

    nats = (0.0 - tales.ability_log_probability).tolist()  # never -0.0
    return {
        "floor_nats": -tales.log_probability,
        "ability_floor_nats": dict(zip(ABILITIES, nats, strict=True)),
    }
