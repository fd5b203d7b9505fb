"""A text of any length as a stream of chunks that can be tokenized one by one.

A chunk ends after a character that is no white space and before a space or a newline. Every
tokenizer begins a new token there, whatever comes before and after, so that the tokens of the
chunks, one after the other, are the tokens of the text. Where there is no such place in `CHUNK`
characters (a text without spaces), the chunk ends there all the same, which for `bpe`, `unigram`
and `gpt2` may part one token in two.
"""

import re
from collections.abc import Iterable, Iterator

CHUNK = 1_000_000  # characters
# What is matched is all up to the last good place; white space is Unicode's.
_TO_LAST_EDGE = re.compile(r".*\S(?=[ \n])", re.DOTALL)


def chunked(blocks: Iterable[str]) -> Iterator[str]:
    """The text of `blocks` in chunks of at most `CHUNK` characters.

    Where they end depends on the text alone, not on its blocks, and not on what comes later: a text
    that is written on keeps all its chunks but the last.
    """
    held = ""
    for block in blocks:
        held += block
        while len(held) > CHUNK:
            found = _TO_LAST_EDGE.match(held, 0, CHUNK + 1)
            cut = found.end() if found else CHUNK
            yield held[:cut]
            held = held[cut:]
    if held:
        yield held


def between(pieces: Iterable[str], start: int, stop: int) -> Iterator[str]:
    """What the characters `start` to `stop` of a text in pieces are, piece by piece."""
    place = 0
    for piece in pieces:
        if part := piece[max(0, start - place) : max(0, stop - place)]:
            yield part
        place += len(piece)
