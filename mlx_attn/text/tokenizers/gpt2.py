"""GPT-2's tokenizer: byte-level byte-pair encoding with the published merges.

Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, section 2.2. A text is
cut into words, numbers, punctuation and white space; in the bytes of each, the pair that comes
first in the list of merges is joined, until no pair is in the list.
"""

import functools
import itertools
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt16

from mlx_attn.errors import RunError
from mlx_attn.files import write_text
from mlx_attn.text.downloads import GPT2_MERGES, fetch
from mlx_attn.text.tokenizers.plain import ByteTable, utf8, write_settings
from mlx_attn.text.tokenizers.words import encode_by_word

END_OF_TEXT = "<|endoftext|>"
_SPACE = "\t-\r \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000"
_FILE = "tokenizer.bpe"


class GPT2Tokenizer(ByteTable):
    """Token ids of GPT-2: 256 bytes, one for each merge, and the end of text (50256) last.

    As in the book, `<|endoftext|>` written in a text is the one token.
    """

    kind = "gpt2"

    def __init__(self, merges: str):
        self._merges = merges
        pairs = _pairs(merges)
        pieces = [bytes([byte]) for byte in _bytes_by_symbol().values()]
        super().__init__([*pieces, *map(b"".join, pairs), END_OF_TEXT.encode()])
        self._rank = {pair: rank for rank, pair in enumerate(pairs)}
        self._token = {piece: token for token, piece in enumerate(self._pieces)}

    @classmethod
    def published(cls, directory: Path) -> "GPT2Tokenizer":
        """The tokenizer of the published models; downloads its merges to `directory` once."""
        path = fetch(GPT2_MERGES, directory)
        try:
            return cls(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise RunError(f"{path}: not GPT-2's merges ({error}); delete it and retry") from error

    def encode(self, text: str) -> UInt16[np.ndarray, " N"]:
        """The token ids of `text`."""
        utf8(text)
        known = {END_OF_TEXT: [self.vocab_size - 1]}
        return encode_by_word(_words(text), lambda words: map(self._merge, words), known)

    def _merge(self, word: str) -> list[int]:
        parts = [bytes([byte]) for byte in word.encode()]
        while pairs := self._rank.keys() & itertools.pairwise(parts):
            parts = _join(parts, min(pairs, key=self._rank.__getitem__))
        return [self._token[part] for part in parts]

    def save(self, directory: Path) -> None:
        """Writes `tokenizer.bpe`, the merges, and `tokenizer.json`."""
        write_text(directory / _FILE, self._merges)
        write_settings(directory, {"kind": self.kind, "vocab_size": self.vocab_size})

    @classmethod
    def load(cls, settings: dict[str, Any], directory: Path) -> "GPT2Tokenizer":
        """The tokenizer that `save` wrote.

        Raises:
            ValueError: The merges are not those that were saved.
        """
        tokenizer = cls((directory / _FILE).read_text(encoding="utf-8"))
        if tokenizer.vocab_size != settings["vocab_size"]:
            raise ValueError(f"{_FILE} makes {tokenizer.vocab_size} tokens")
        return tokenizer


def _join(parts: list[bytes], pair: tuple[bytes, bytes]) -> list[bytes]:
    """`parts` with every occurrence of `pair` joined, from left to right."""
    joined: list[bytes] = []
    following = iter(range(len(parts)))
    for index in following:
        if (*parts[index : index + 2],) == pair:
            joined.append(b"".join(pair))
            next(following)
        else:
            joined.append(parts[index])
    return joined


def _words(text: str) -> Iterator[str]:
    for number, passage in enumerate(text.split(END_OF_TEXT)):
        if number:
            yield END_OF_TEXT
        yield from map(re.Match.group, _pattern().finditer(passage))


@functools.cache
def _pattern() -> re.Pattern[str]:
    r"""GPT-2's pattern; \p{L} and \p{N}, which `re` lacks, are written out from Unicode's table."""
    letter, number = _category("L"), _category("N")
    return re.compile(
        rf"'s|'t|'re|'ve|'m|'ll|'d| ?[{letter}]+| ?[{number}]+| ?[^{_SPACE}{letter}{number}]+"
        rf"|[{_SPACE}]+(?![^{_SPACE}])|[{_SPACE}]+"
    )


def _category(initial: str) -> str:
    """The code points of a Unicode general category as the inside of a character class."""
    codes = (code for code in range(0x110000) if unicodedata.category(chr(code))[0] == initial)
    runs = itertools.groupby(enumerate(codes), key=lambda item: item[1] - item[0])
    members = ([code for _, code in run] for _, run in runs)
    return "".join(f"\\U{run[0]:08x}-\\U{run[-1]:08x}" for run in members)


def _bytes_by_symbol() -> dict[str, int]:
    """The letters that the list of merges writes bytes with, in the order of their token ids.

    Bytes that print in Latin-1 stand for themselves; the others are U+0100 onwards.
    """
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printing]
    shown = [*map(chr, printing), *(chr(0x100 + place) for place in range(len(others)))]
    return dict(zip(shown, printing + others, strict=True))


def _pairs(merges: str) -> list[tuple[bytes, bytes]]:
    """The merges, in order; raises ValueError where a line is not two symbols."""
    byte_of = _bytes_by_symbol()
    pairs: list[tuple[bytes, bytes]] = []
    for line in merges.split("\n"):
        if line and not line.startswith("#version"):
            try:
                left, right = (bytes(map(byte_of.__getitem__, half)) for half in line.split(" "))
            except (KeyError, ValueError) as error:
                raise ValueError(f"{line!r} is not two symbols") from error
            pairs.append((left, right))
    if not pairs:
        raise ValueError("there is no merge")
    return pairs
