"""Documents of a task: their symbols, which of them are scored, and the least possible loss."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64

ABILITIES = ("context", "answer")
"""What a scored symbol calls for: it is given, or it is the answer that the task is about."""


@dataclass(frozen=True)
class Documents:
    """Documents of one task, all of the same length.

    Attributes:
        symbols: The vocabulary.
        places: Each document's symbols, as indices into the vocabulary.
        scored: The symbols that count for the loss; never the first one of a document.
        answers: Those of them that the task is about.
        nats: -log p of each symbol given those before it, p being the distribution that the
            documents are drawn from; 0 where the symbol is not scored.
    """

    symbols: Sequence[str]
    places: Int64[np.ndarray, "D L"]
    scored: Bool[np.ndarray, "D L"]
    answers: Bool[np.ndarray, "D L"]
    nats: Float64[np.ndarray, "D L"]

    @property
    def floor(self) -> float:
        """The floor in nats per scored symbol: no model's expected loss is lower."""
        return float(self.nats.sum() / self.scored.sum())

    def arrays(self) -> dict[str, np.ndarray]:
        """The documents as one stream of tokens, and what is known of each token.

        A newline, token 0, stands before each document and after the last one, so that a window
        that starts at a newline and is as long as a document and its newline holds all of it.
        Symbol s is token s + 1.
        """
        count, length = self.places.shape
        return {
            "tokens": _stream(self.places + 1),
            "document_starts": np.arange(count) * (length + 1),
            "token_abilities": _stream(self.answers),
            "scored": _stream(self.scored),
        }

    def facts(self) -> dict[str, Any]:
        """The floors in nats, of all documents together, and the bytes of their text."""
        answer, everything = float(self.nats[self.answers].sum()), float(self.nats.sum())
        lengths = np.array([1 + len(symbol.encode()) for symbol in self.symbols])
        return {
            "n_bytes": int(lengths[self.places].sum()) + len(self.places) + 1,
            "floor_nats": everything,
            "ability_floor_nats": {"context": everything - answer, "answer": answer},
        }


def _stream(rows: np.ndarray) -> np.ndarray:
    """Rows one after the other, with a zero before each and after the last."""
    return np.append(np.pad(rows, ((0, 0), (1, 0))).ravel(), rows.dtype.type(0))
