"""The tokenizer of a task: one token a symbol, and a newline before each document."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt16

from mlx_attn.errors import ConfigError
from mlx_attn.text.tokenizers.plain import ByteTable, utf8, write_settings


class SymbolTokenizer(ByteTable):
    r"""Token 0 is a newline; token t is the t-th symbol, written with a space before it.

    A text is read symbol by symbol, and spaces only keep symbols apart. A document begins with a
    newline; a text that does not is given one, so that `3 1 2` is read as a document's beginning.

    Args:
        symbols: Distinct words without white space.
    """

    kind = "symbols"

    def __init__(self, symbols: Sequence[str]):
        super().__init__([b"\n", *(b" " + symbol.encode() for symbol in symbols)])
        self.symbols = tuple(symbols)
        self._tokens = {"\n": 0} | {symbol: t for t, symbol in enumerate(symbols, 1)}

    def encode(self, text: str) -> UInt16[np.ndarray, " N"]:
        """The token ids of `text`, the first of which is the newline.

        Raises:
            ConfigError: Names the words that are no symbols.
        """
        utf8(text)
        words = re.findall(r"\n|\S+", text)
        if unknown := sorted(set(words) - set(self._tokens)):
            raise self._unknown(unknown)
        opening = [] if words[:1] == ["\n"] else ["\n"]
        return np.array([self._tokens[word] for word in opening + words], np.uint16)

    def _unknown(self, words: list[str]) -> ConfigError:
        shown = ", ".join(map(repr, words[:8])) + (", ..." if len(words) > 8 else "")
        return ConfigError(
            f"no symbols of this task: {shown}; its {len(self.symbols)} symbols are "
            f"{self.symbols[0]} to {self.symbols[-1]}, with spaces between them"
        )

    def save(self, directory: Path) -> None:
        """Writes `tokenizer.json`."""
        write_settings(directory, {"kind": self.kind, "symbols": self.symbols})

    @classmethod
    def load(cls, settings: dict[str, Any], directory: Path) -> "SymbolTokenizer":
        """The tokenizer that `save` wrote."""
        return cls(settings["symbols"])
