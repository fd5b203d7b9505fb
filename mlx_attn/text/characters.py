"""The base of all tokenizers, and the tokenizers of bytes, characters and a task's symbols."""

import json
import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
from jaxtyping import UInt16

from mlx_attn.errors import ConfigError, plural
from mlx_attn.files import write_text
from mlx_attn.text.progress import log_progress

LARGEST_VOCABULARY = 65_536  # token ids are uint16
PROBE = "It isn't  13 o'clock, naïve Zoë!\n\n\tYes: 3.5 \u20ac, \U0001f600 日本. X \n"
"""A text with the features that tokenizers treat differently."""
_GAP = re.compile(r"(?<=\S)(?=[ \n])")
_NEAR = 100  # characters on either side of a gap that decide whether a cut there changes tokens


class Tokenizer(ABC):
    """Convert text to token ids and back: token t is the bytes `vocabulary[t]`.

    `settings` are written to `tokenizer.json`.
    """

    kind: str
    end_of_text = ""  # the special token that ends a text, if any
    end: int | None = None  # its id
    block = 8_000_000  # about how many characters to encode at a time

    def __init__(self, vocabulary: Sequence[bytes], **settings: Any):
        if len(vocabulary) > LARGEST_VOCABULARY:
            raise ConfigError(
                f"{len(vocabulary):,} tokens are more than {LARGEST_VOCABULARY:,}, all that 16 "
                "bits tell apart: choose the byte or bpe tokenizer"
            )
        self.vocab_size = len(vocabulary)
        self.vocabulary = list(vocabulary)
        self.settings = settings

    def encode(self, text: str) -> UInt16[np.ndarray, " N"]:
        """Return the token ids of `text`; ConfigError if it cannot be expressed in tokens."""
        if not isinstance(text, str):
            raise ConfigError(f"a text has the type {type(text).__name__}: give a str")
        try:
            text.encode()
        except UnicodeEncodeError as error:  # UTF-8 has no lone surrogates
            code = f"U+{ord(text[error.start]):04X}"
            raise ConfigError(
                f"character {error.start} of the text is the lone surrogate {code}, half of a "
                "character: remove it or read the text as UTF-8"
            ) from error
        return np.concatenate([self._encoded(block) for block in self._blocks(text)])

    def _blocks(self, text: str) -> Iterator[str]:
        """Yield the parts of a text, cut only where that changes no token nearby."""
        start = 0
        for place in range(self.block, len(text), self.block):
            found = islice(_GAP.finditer(text, place, place + self.block), 100)
            gaps = (gap.start() for gap in found)
            stop = next((gap for gap in gaps if self._can_cut(text, gap)), start)
            if stop > start:
                yield text[start:stop]
                start = stop
            log_progress("encoding characters", place - self.block, place, len(text))
        yield text[start:]

    def _can_cut(self, text: str, place: int) -> bool:
        """Return True if the characters near a place have the same tokens when it is cut there."""
        first, last = place - _NEAR, place + _NEAR
        parts = text[first:place], text[place:last], text[first:last]
        left, right, whole = (self._encoded(part).tolist() for part in parts)
        return left + right == whole

    @abstractmethod
    def _encoded(self, text: str) -> UInt16[np.ndarray, " N"]: ...

    def token_bytes(self, token: SupportsIndex) -> bytes:
        """Return the bytes of `token`; ConfigError outside the vocabulary."""
        index = token.__index__()
        if not 0 <= index < self.vocab_size:
            raise ConfigError(f"token {index} is outside the vocabulary of {self.vocab_size}")
        return self.vocabulary[index]

    def decode(self, tokens: Iterable[SupportsIndex]) -> str:
        """Return the text of `tokens`; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, tokens)).decode("utf-8", "replace")

    def save(self, directory: Path) -> None:
        """Write `tokenizer.json`, and another file if the kind needs one."""
        settings = {"kind": self.kind, **self.settings}
        write_text(directory / "tokenizer.json", json.dumps(settings, indent=1) + "\n")


class ByteTokenizer(Tokenizer):
    """One token a byte: token t is the byte t."""

    kind = "byte"

    def __init__(self):
        super().__init__([bytes([value]) for value in range(256)])

    def _encoded(self, text: str) -> UInt16[np.ndarray, " N"]:
        return np.frombuffer(text.encode(), np.uint8).astype(np.uint16)


class CharacterTokenizer(Tokenizer):
    """One token a character: token t is the t-th of the sorted distinct characters."""

    kind = "char"
    block = 2**40  # all: an error names the unknown characters of the whole text

    def __init__(self, characters: str):
        super().__init__([c.encode() for c in characters], characters=characters)
        if not characters:
            raise ValueError("it has no characters")
        codes = _code_points(characters)
        # The last entry is for all characters beyond the largest known one.
        self._tokens = np.full(int(codes.max()) + 2, -1, np.int32)
        self._tokens[codes] = np.arange(len(codes))

    @classmethod
    def train(cls, text: str) -> "CharacterTokenizer":
        """Return the tokenizer whose vocabulary is the distinct characters of `text`."""
        return cls("".join(sorted(set(text))))

    def _encoded(self, text: str) -> UInt16[np.ndarray, " N"]:
        codes = np.minimum(_code_points(text), len(self._tokens) - 1)
        tokens = self._tokens[codes]
        if tokens.min(initial=0) < 0:
            known = set(self.settings["characters"])
            unknown = sorted(set(text) - known)
            advice = "leave that out, or train with the byte or bpe tokenizer, which read any text"
            for form in ("NFC", "NFD"):
                if known.issuperset(unicodedata.normalize(form, text)):
                    advice = f"write it in Unicode's form {form}, as the training text does"
            raise ConfigError(
                f"{plural(len(unknown), 'character')} not in the vocabulary of {self.vocab_size}: "
                f"{_listed(unknown)}; {advice}"
            )
        return tokens.astype(np.uint16)


def _listed(unknown: list[str]) -> str:
    return ", ".join(map(repr, unknown[:8])) + (", ..." if len(unknown) > 8 else "")


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)


class SymbolTokenizer(Tokenizer):
    r"""Token 0 is a newline; token t is the t-th symbol, written with a space before it.

    A text is read symbol by symbol, and spaces only keep symbols apart. A document begins with a
    newline; a text that does not is given one, so that `3 1 2` is read as a document's beginning.
    """

    kind = "symbols"

    def __init__(self, symbols: Sequence[str]):
        self.symbols = tuple(symbols)
        pieces = [b"\n", *(b" " + symbol.encode() for symbol in symbols)]
        super().__init__(pieces, symbols=self.symbols)
        self._tokens = {"\n": 0} | {symbol: t for t, symbol in enumerate(symbols, 1)}

    def _encoded(self, text: str) -> UInt16[np.ndarray, " N"]:
        words = re.findall(r"\n|\S+", text)
        if unknown := sorted(set(words) - set(self._tokens)):
            raise ConfigError(
                f"no symbols of this task: {_listed(unknown)}; its {len(self.symbols)} symbols are "
                f"{self.symbols[0]} to {self.symbols[-1]}, with spaces between them"
            )
        opening = [] if words[:1] == ["\n"] else ["\n"]
        return np.array([self._tokens[word] for word in opening + words], np.uint16)
