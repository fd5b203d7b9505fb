"""Which windows of the corpus a step sees: a pure function of (seed, step).

Nothing is shuffled in place and nothing is remembered, so a resumed run needs no loader state. A
window is named by the position where it starts; the step gathers its tokens on the device.
"""

from functools import lru_cache
from typing import Protocol, runtime_checkable

import mlx.core as mx
import numpy as np
from jaxtyping import Integer

from mlx_attn.errors import ConfigError

BATCH_STREAM = 0x6D6C78
"""Keeps the batches' random numbers apart from others drawn with the same seed."""


@runtime_checkable
class WindowOrder(Protocol):
    """The order in which windows are seen."""

    @property
    def batch_size(self) -> int:
        """Windows B per step."""
        ...

    @property
    def steps_per_epoch(self) -> float:
        """Steps in one pass over the text."""
        ...

    def starts(self, seed: int, step: int) -> Integer[mx.array, " B"]:
        """Where the windows of this step start."""
        ...


class RandomWindows:
    """Windows drawn anywhere, or at given places such as the starts of documents.

    Args:
        n_tokens: Length of the corpus.
        context_length: Length T of a window; T + 1 tokens are read.
        batch_size: Windows per step.
        places: Where windows may start; None is anywhere.
    """

    def __init__(
        self,
        n_tokens: int,
        context_length: int,
        batch_size: int,
        places: Integer[np.ndarray, " places"] | None = None,
    ):
        self.last = last_start(n_tokens, context_length)
        self.batch_size = batch_size
        self.steps_per_epoch = n_tokens / (batch_size * context_length)
        fitting = None if places is None else places[places <= self.last]
        self.places = None if fitting is None or not len(fitting) else mx.array(fitting)

    def starts(self, seed: int, step: int) -> Integer[mx.array, " B"]:
        """Uniformly drawn starts."""
        key = mx.array([seed ^ BATCH_STREAM, step], dtype=mx.uint32)
        choices = self.last + 1 if self.places is None else self.places.size
        # Keys are twice 32 random bits. `randint` draws floats, which reach only every sixth start
        # of a corpus of 100 million tokens.
        drawn = _below(choices, mx.random.split(key, self.batch_size))
        return drawn if self.places is None else self.places[drawn]


def _below(choices: int, bits: Integer[mx.array, "B 2"]) -> Integer[mx.array, " B"]:
    """Random numbers from 0 to `choices` - 1, made of 32 random bits where these suffice."""
    if choices < 2**32:
        return bits[:, 0] % choices
    high, low = bits.astype(mx.uint64).moveaxis(1, 0)
    return ((high << 32 | low) % mx.array(choices, mx.uint64)).astype(mx.int64)


class EpochWindows:
    """Windows side by side, each once per epoch, in a new order every epoch (the book's loader).

    An incomplete last batch is dropped; a text of fewer windows than a batch makes a smaller batch.

    Args:
        n_tokens: Length of the corpus.
        context_length: Length T of a window; T + 1 tokens are read.
        batch_size: Windows per step.
    """

    def __init__(self, n_tokens: int, context_length: int, batch_size: int):
        self.n_windows = last_start(n_tokens, context_length) // context_length + 1
        self.context_length = context_length
        self.batch_size = min(batch_size, self.n_windows)
        self.steps_per_epoch = self.n_windows // self.batch_size

    def starts(self, seed: int, step: int) -> Integer[mx.array, " B"]:
        """The starts of this step's share of its epoch's order."""
        epoch, place = divmod(step, self.steps_per_epoch)
        order = epoch_order(seed, epoch, self.n_windows)
        windows = order[place * self.batch_size :][: self.batch_size]
        return mx.array(windows.astype(np.int64) * self.context_length)


@lru_cache(maxsize=4)
def epoch_order(seed: int, epoch: int, n_windows: int) -> Integer[np.ndarray, " windows"]:
    """The order of an epoch's windows."""
    generator = np.random.Generator(np.random.Philox(key=[seed ^ BATCH_STREAM, epoch]))
    return generator.permutation(np.arange(n_windows, dtype=np.uint32))  # half of int64's memory


def last_start(n_tokens: int, context_length: int) -> int:
    """The last place where a window of T inputs and their targets fits.

    Raises:
        ConfigError: None fits.
    """
    if n_tokens <= context_length:
        raise ConfigError(
            f"the text has {n_tokens} tokens to train on, too few for "
            f"context_length={context_length}: use a longer text or a shorter context"
        )
    return n_tokens - context_length - 1
