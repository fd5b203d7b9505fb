"""Where the tokens of a step come from: an array beside the model, or a file on disk.

The windows are the same either way. A text that fits into `token_memory` is adopted whole, and the
step gathers its windows on the device; of a longer one only the windows of the step are read, on
the host, from the memory-mapped file.
"""

from mmap import mmap
from typing import Protocol, runtime_checkable

import mlx.core as mx
import numpy as np
from jaxtyping import Integer

Starts = Integer[mx.array, "*N B"]
"""Where windows start; those of several replicas are along a first axis N."""

MEGABYTE = 1_000_000


@runtime_checkable
class TokenSource(Protocol):
    """The tokens of the training text, by windows."""

    def fetch(self, starts: Starts) -> mx.array:
        """What the host does before a step; the result is the step's input."""
        ...

    def windows(self, fetched: mx.array) -> Integer[mx.array, "*N B T1"]:
        """The T + 1 tokens from each start, inside of the step."""
        ...


class ResidentTokens:
    """All tokens on the device: the host sends start positions and nothing else.

    Args:
        tokens: The training text; on a GPU a file that is mapped is adopted without a copy.
        context_length: T.
    """

    def __init__(self, tokens: Integer[np.ndarray, " N"], context_length: int):
        self._tokens = mx.asarray(tokens)
        self._offsets = mx.arange(context_length + 1)

    def fetch(self, starts: Starts) -> Starts:
        """The starts."""
        return starts

    def windows(self, fetched: Starts) -> Integer[mx.array, "*N B T1"]:
        """The T + 1 tokens from each start."""
        return self._tokens[fetched[..., None] + self._offsets]


class StreamedTokens:
    """Tokens that stay on disk: the host reads the windows of each step.

    Args:
        tokens: The training text, mapped from its file.
        context_length: T.
    """

    def __init__(self, tokens: Integer[np.ndarray, " N"], context_length: int):
        self._tokens, self._length = tokens, context_length + 1

    def fetch(self, starts: Starts) -> Integer[mx.array, "*N B T1"]:
        """The T + 1 tokens from each start."""
        return mx.array(read_windows(self._tokens, np.array(starts, np.int64), self._length))

    def windows(self, fetched: Integer[mx.array, "*N B T1"]) -> Integer[mx.array, "*N B T1"]:
        """The windows, which were fetched."""
        return fetched


def token_source(
    tokens: Integer[np.ndarray, " N"], context_length: int, token_memory: int
) -> TokenSource:
    """The source that fits a text.

    Args:
        tokens: The training text.
        context_length: T.
        token_memory: How many megabytes of tokens may stay in memory.
    """
    fits = tokens.nbytes <= token_memory * MEGABYTE
    return (ResidentTokens if fits else StreamedTokens)(tokens, context_length)


def read_windows(
    tokens: Integer[np.ndarray, " N"], starts: Integer[np.ndarray, "*N B"], length: int
) -> Integer[np.ndarray, "*N B length"]:
    """The `length` tokens from each start.

    A map that stays open keeps every page that was ever read in this process's resident memory,
    until that is the whole file; this one is closed at once.
    """
    return np.asarray(reopened(tokens)[starts[..., None] + np.arange(length)])


def reopened(tokens: Integer[np.ndarray, " N"]) -> Integer[np.ndarray, " N"]:
    """Another map of the same file; arrays that are no map of a whole file are returned."""
    if isinstance(tokens, np.memmap) and isinstance(tokens.base, mmap):
        return np.memmap(str(tokens.filename), tokens.dtype, "r", tokens.offset, tokens.shape)
    return tokens
