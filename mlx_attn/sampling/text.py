"""Text out of a stream of tokens: whole characters, up to a stop text."""

import codecs
from collections.abc import Sequence

from mlx_attn.errors import ConfigError
from mlx_attn.text.tokenizers import Tokenizer


class TextStream:
    """Joins the bytes of tokens and lets go of text as soon as it is certain.

    Bytes wait for the rest of their character; bytes that can be no character become U+FFFD. Text
    that may be the beginning of a stop text waits too; a stop text itself never comes out.

    Args:
        tokenizer: Whose tokens come.
        stop: The texts to stop at.

    Attributes:
        stopped: Whether a stop text has come.

    Raises:
        ConfigError: A stop text is empty.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()):
        if "" in stop:
            raise ConfigError("a stop text is empty: give at least one character, or leave it out")
        self.stopped = False
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._waiting = ""

    def push(self, token: int, last: bool = False) -> str:
        """The text that `token` makes certain; with `last`, all that is left."""
        text = self._waiting + self._decoder.decode(self._tokenizer.token_bytes(token), last)
        found = [text.index(stop) for stop in self._stop if stop in text]
        self.stopped = bool(found)
        certain = min(found) if found else len(text) - (0 if last else self._uncertain(text))
        self._waiting = text[certain:]
        return text[:certain]

    def _uncertain(self, text: str) -> int:
        """The length of the longest end of `text` that a stop text begins with."""
        return max((_overlap(text, stop) for stop in self._stop), default=0)


def _overlap(text: str, stop: str) -> int:
    sizes = range(min(len(text), len(stop) - 1), 0, -1)
    return next((size for size in sizes if text.endswith(stop[:size])), 0)
