"""Tokenizers of other programs, read by the `tokenizers` library: GPT-2's, and any tokenizer.json.

The ids are the library's own. A text that does not come back from its tokens is refused, and so is
a tokenizer that changes the usual text, or adds tokens to every one.
"""

import base64
import re
from collections.abc import Iterable, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt16

from mlx_attn.errors import ConfigError, RunError, optional
from mlx_attn.files import write_text
from mlx_attn.records import Object, parse_record, read_record, read_text
from mlx_attn.text import characters

END_OF_TEXT = "<|endoftext|>"
"""The special token of GPT-2 that ends a text."""
_ENDS = ("</s>", "<|end_of_text|>")
"""That of other tokenizers."""
_PAIRS = {"merges.txt": "vocab.json", "vocab.bpe": "encoder.json"}
"""Files of merges and the ids beside them: GPT-2's by Hugging Face, and by OpenAI."""
FILES = ("tokenizer.json", *_PAIRS)
"""The files that a folder's tokenizer is read from: the first that is there."""


class ForeignTokenizer(characters.Tokenizer):
    """A tokenizer in the format of the `tokenizers` library.

    Attributes:
        content: The text of its tokenizer.json.
        merges: One merge a line, if these and `end` give every id, as for GPT-2; else "".

    Raises:
        RunError: The library is not installed.
        ValueError: The library cannot read the content, or the tokenizer changes a text.
    """

    block = 1_000_000  # the library takes 200 bytes of memory for each

    def __init__(self, content: str):
        self.content, library = content, _library()
        record = parse_record(content, Object, "tokenizer.json")
        try:
            self._library: Any = library.Tokenizer.from_str(content)
            self._library.no_truncation()  # nor padding: its program sets them anew for each batch
            self._library.no_padding()
        except Exception as error:  # the library raises no other class
            raise ValueError(f"the tokenizers library cannot read it: {error}") from error
        ids: dict[str, int] = self._library.get_vocab(with_added_tokens=True)
        if sorted(ids.values()) != [*range(len(ids))]:
            raise ValueError("its ids are not 0, 1, 2, ... without gaps")
        self.end_of_text = next((end for end in (END_OF_TEXT, *_ENDS) if end in ids), "")
        self.end = ids.get(self.end_of_text)
        self.merges = _merges_of(record, ids)
        self.kind = "gpt2" if self.merges else "foreign"
        super().__init__(_pieces(record, ids))
        if self._library.encode(characters.PROBE).ids != self.encode(characters.PROBE).tolist():
            raise ValueError("it adds tokens to every text: remove its post_processor")

    @classmethod
    def from_merges(cls, merges: str, ids: Mapping[str, int] | None = None) -> "ForeignTokenizer":
        """Return a byte-level BPE as GPT-2's, of one merge a line, the earliest first.

        Without `ids`, tokens are numbered as in GPT-2: the bytes, the merges, and the end of text.

        Raises:
            ValueError: A line is not a merge of two tokens.
        """
        lines = [line for line in merges.split("\n") if line and not line.startswith("#version")]
        pairs = [tuple(line.split(" ")) for line in lines]
        if not pairs or any(len(pair) != 2 for pair in pairs):
            raise ValueError("there is no merge, or a line is not two symbols")
        if ids is None:
            tokens = [*_tokens(map("".join, pairs)), END_OF_TEXT]
            ids = {token: number for number, token in enumerate(tokens)}
        library = _library()
        try:
            made = library.Tokenizer(library.models.BPE(vocab=dict(ids), merges=pairs))
        except Exception as error:
            raise ValueError(str(error)) from error
        made.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = library.decoders.ByteLevel()
        made.add_special_tokens([END_OF_TEXT])
        return cls(made.to_str())

    def _encoded(self, text: str) -> UInt16[np.ndarray, " N"]:
        ids = self._library.encode(text, add_special_tokens=False).ids
        if (back := self.decode(ids)) != text:  # as by a normalizer: NFC joins a letter and accent
            place = next(n for n, (a, b) in enumerate(zip_longest(text, back)) if a != b)
            was, now = (ascii(each[place : place + 20]) for each in (text, back))
            raise ConfigError(
                f"a text does not come back from its tokens, {was} is {now}: write it so, or "
                "choose another tokenizer"
            )
        return np.array(ids, np.uint16)

    def save(self, directory: Path) -> None:
        """Write `tokenizer.json` as the library does."""
        write_text(directory / "tokenizer.json", self.content)


def read_foreign(path: Path) -> ForeignTokenizer:
    """Return the tokenizer in a file or a folder.

    A file is a tokenizer.json, a list of merges, or a .tiktoken file, whose texts are cut as
    GPT-2's. A folder holds tokenizer.json, or merges.txt and vocab.json, which OpenAI calls
    vocab.bpe and encoder.json.

    Raises:
        RunError: There is no tokenizer, or it cannot be used here.
    """
    file = _file_in(path) if path.is_dir() else path
    merges = {ids: merges for merges, ids in _PAIRS.items()}.get(file.name)
    file = file.with_name(merges) if merges else file
    if not file.is_file():
        raise RunError(f"{file}: no such file, so there is no tokenizer here")
    try:
        if file.suffix == ".json":
            return ForeignTokenizer(read_text(file))
        if file.suffix == ".tiktoken":
            return ForeignTokenizer.from_merges(*_merges_of_ranks(read_text(file)))
        ids = file.with_name(_PAIRS.get(file.name, file.name))
        known = read_record(ids, dict[str, int]) if ids != file and ids.is_file() else None
        return ForeignTokenizer.from_merges(read_text(file), known)
    except (ValueError, LookupError, TypeError) as error:
        raise RunError(f"{file}: not a tokenizer that can be used here ({error})") from error


def _file_in(folder: Path) -> Path:
    for name in FILES:
        if (folder / name).is_file():
            return folder / name
    pairs = " or ".join(f"{merges} with {ids}" for merges, ids in _PAIRS.items())
    way_out = ": name its tokenizer.model" if (folder / "tokenizer.model").is_file() else ""
    raise RunError(f"{folder / 'tokenizer.json'}: no such file, nor {pairs}{way_out}")


def _merges_of_ranks(content: str) -> tuple[str, dict[str, int]]:
    """Return the merges and ids of a .tiktoken file: lines of a token in base64 and its rank."""
    symbols = {byte: symbol for symbol, byte in bytes_by_symbol().items()}
    ids: dict[str, int] = {}
    for token, rank in (line.split() for line in content.splitlines() if line):
        letters = map(symbols.__getitem__, base64.b64decode(token, validate=True))
        ids["".join(letters)] = int(rank)
    merges = merges_of(ids)
    if missing := ids.keys() - {*symbols.values(), *map("".join, merges)}:
        letters = bytes(map(bytes_by_symbol().__getitem__, min(missing)))
        raise ValueError(f"{letters!r} is not made of two earlier tokens")
    free = sorted(set(range(len(ids) + 1)) - set(ids.values()))
    return "\n".join(map(" ".join, merges)), ids | {END_OF_TEXT: free[0]}


def merges_of(ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return every cut of a token into two, the earliest token first: all are merges of it."""
    cuts = [
        (rank, ids[token[:n]], ids[token[n:]], (token[:n], token[n:]))
        for token, rank in ids.items()
        for n in range(1, len(token))
        if token[:n] in ids and token[n:] in ids
    ]
    return [pair for *_, pair in sorted(cuts)]


def _library() -> Any:
    needed = "GPT-2's tokenizer and those of other programs need: pip install 'mlx-attn[gpt2]'"
    return optional("tokenizers", needed)


def _pieces(record: Object, ids: Mapping[str, int]) -> list[bytes]:
    """Return the bytes of each token.

    Raises:
        ValueError: A byte-level tokenizer lacks bytes, which it would drop from a text.
    """
    added = {token["content"] for token in record.get("added_tokens") or ()}
    byte_of, is_byte_level = bytes_by_symbol(), "ByteLevel" in str(record.get("decoder"))
    if is_byte_level and (missing := byte_of.keys() - ids.keys()):
        raise ValueError(f"it lacks {len(missing)} of 256 bytes, such as {min(missing)!r}")

    def piece(token: str) -> bytes:
        if is_byte_level and token not in added:
            return bytes(map(byte_of.__getitem__, token))
        if re.fullmatch("<0x[0-9A-F]{2}>", token) and token not in added:
            return bytes.fromhex(token[3:5])
        return token.replace("\u2581", " ").encode()

    return [piece(token) for token in sorted(ids, key=ids.__getitem__)]


def _merges_of(record: Object, ids: Mapping[str, int]) -> str:
    """Return the merges, one a line, if these and the end of text give every id; else ""."""
    model, cut = record["model"], record.get("pre_tokenizer") or {}
    is_gpt2 = (
        model["type"] == "BPE"
        and cut.get("type") == "ByteLevel"
        and cut.get("use_regex", True)
        and not record.get("normalizer")
        and {token["content"] for token in record.get("added_tokens") or ()} == {END_OF_TEXT}
    )
    if not is_gpt2:
        return ""
    pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
    expected = _tokens(map("".join, pairs))
    expected.insert(ids[END_OF_TEXT], END_OF_TEXT)
    is_equal = expected == sorted(ids, key=ids.__getitem__)
    return "\n".join(map(" ".join, pairs)) if is_equal else ""


def _tokens(merged: Iterable[str]) -> list[str]:
    """Return GPT-2's tokens but for the end of text: the bytes and the merged pieces."""
    return [*dict.fromkeys([*bytes_by_symbol(), *merged])]


def bytes_by_symbol() -> dict[str, int]:
    """Return the letters that the merges write bytes with, in the order of their token ids.

    Bytes that print in Latin-1 keep their character; the others are U+0100 onwards.
    """
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printing]
    shown = [*map(chr, printing), *(chr(0x100 + place) for place in range(len(others)))]
    return dict(zip(shown, printing + others, strict=True))
