"""Which windows of the corpus a step sees: a pure function of (seed, step).

Nothing is shuffled in place and nothing is remembered, so a resumed run needs no loader state. A
window is named by the position where it starts; the step gathers its tokens on the device.
"""

from collections.abc import Callable
from functools import lru_cache
from mmap import mmap

import mlx.core as mx
import numpy as np
from jaxtyping import Float, Integer

from mlx_attn.errors import ConfigError
from mlx_attn.machine.exponentials import cross_entropy
from mlx_attn.text.corpus import Split

BATCH_STREAM = 0x6D6C78
"""Keeps the batches' random numbers apart from others drawn with the same seed."""


Starts = Integer[mx.array, " B"]
"""Where windows start."""


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

    def starts(self, seed: int, step: int) -> Starts:
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
    Arguments as of `RandomWindows`.
    """

    def __init__(self, n_tokens: int, context_length: int, batch_size: int):
        self.n_windows = last_start(n_tokens, context_length) // context_length + 1
        self.context_length = context_length
        self.batch_size = min(batch_size, self.n_windows)
        self.steps_per_epoch = self.n_windows // self.batch_size

    def starts(self, seed: int, step: int) -> Starts:
        """The starts of this step's share of its epoch's order."""
        epoch, place = divmod(step, self.steps_per_epoch)
        order = epoch_order(seed, epoch, self.n_windows)
        windows = order[place * self.batch_size :][: self.batch_size]
        return mx.array(windows.astype(np.int64) * self.context_length)


BatchSampler = RandomWindows | EpochWindows
"""Draws the windows of a step."""


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


MEGABYTE = 1_000_000


class ResidentTokens:
    """All tokens on the device: the host sends start positions and nothing else.

    `fetch` is the host's work before a step, `windows` is done inside the step; `StreamedTokens`
    divides the two otherwise.

    Args:
        tokens: The training text; on a GPU a file that is mapped is adopted without a copy.
        context_length: T.
    """

    def __init__(self, tokens: Integer[np.ndarray, " N"], context_length: int):
        self._tokens = mx.asarray(tokens)
        # From NumPy: a lazy `mx.arange` would be computed again in every compiled step.
        self._offsets = mx.array(np.arange(context_length + 1, dtype=np.int32))

    def fetch(self, starts: Starts) -> Starts:
        """The starts."""
        return starts

    def windows(self, fetched: Starts) -> Integer[mx.array, "B T1"]:
        """The T + 1 tokens from each start."""
        return self._tokens[fetched[..., None] + self._offsets]


class StreamedTokens:
    """Tokens that stay on disk, mapped from their file: the host reads the windows of each step."""

    def __init__(self, tokens: Integer[np.ndarray, " N"], context_length: int):
        self._tokens, self._length = tokens, context_length + 1

    def fetch(self, starts: Starts) -> Integer[mx.array, "B T1"]:
        """The T + 1 tokens from each start."""
        return mx.array(read_windows(self._tokens, np.array(starts, np.int64), self._length))

    def windows(self, fetched: Integer[mx.array, "B T1"]) -> Integer[mx.array, "B T1"]:
        """The windows, which were fetched."""
        return fetched


TokenSource = ResidentTokens | StreamedTokens


def token_source(
    tokens: Integer[np.ndarray, " N"], context_length: int, token_memory: int
) -> TokenSource:
    """The source that fits a text, of which `token_memory` megabytes may stay in memory."""
    fits = tokens.nbytes <= token_memory * MEGABYTE
    return (ResidentTokens if fits else StreamedTokens)(tokens, context_length)


def read_windows(
    tokens: Integer[np.ndarray, " N"], starts: Integer[np.ndarray, " B"], length: int
) -> Integer[np.ndarray, "B length"]:
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


Scalar = Float[mx.array, ""]

Windows = Integer[mx.array, "B T1"]
Scored = Integer[mx.array, "B T"]
Model = Callable[[mx.array], mx.array]
"""From tokens to logits."""


class EveryToken:
    """The loss of a text: the mean over all tokens of all windows.

    Every objective has four methods: `fetch` is the host's work before a step, `gather` makes a
    batch of the result inside the step, `loss` is the batch's mean loss in nats per scored token,
    and `weight` the number of those tokens.
    """

    def __init__(self, tokens: TokenSource):
        self.fetch, self.gather = tokens.fetch, tokens.windows

    def loss(self, model: Model, batch: Windows) -> Scalar:
        """Mean nats per token.

        Window by window: on a processor MLX adds numbers one after the other, and a sum of all of a
        batch's would be off in the fifth digit.
        """
        return window_losses(model, batch).mean(-1).mean(-1)

    def weight(self, batch: Windows) -> Scalar:
        """All tokens but each window's first."""
        return mx.array(float(batch.shape[-2] * (batch.shape[-1] - 1)))


class ScoredTokens:
    """The loss of a task: the mean over the scored tokens of all windows.

    Args:
        tokens: The tokens of the task.
        scored: For each of them, 1 if it is scored, else 0.
    """

    def __init__(self, tokens: TokenSource, scored: TokenSource):
        self._sources = tokens, scored

    def fetch(self, starts: Starts) -> tuple[mx.array, ...]:
        """Of both."""
        return tuple(source.fetch(starts) for source in self._sources)

    def gather(self, fetched: tuple[mx.array, ...]) -> tuple[Windows, Scored]:
        """The windows, and which of their targets are scored."""
        windows, scored = (s.windows(f) for s, f in zip(self._sources, fetched, strict=True))
        return windows, scored[..., 1:]

    def loss(self, model: Model, batch: tuple[Windows, Scored]) -> Scalar:
        """Mean nats per scored token; 0 where there is none."""
        windows, scored = batch
        total = (window_losses(model, windows) * scored).sum()
        return total / mx.maximum(scored.sum(), 1)

    def weight(self, batch: tuple[Windows, Scored]) -> Scalar:
        """The scored ones."""
        return batch[1].sum().astype(mx.float32)


Objective = EveryToken | ScoredTokens


def objective_for(split: Split, context_length: int, token_memory: int) -> Objective:
    """The objective of a training on this text; see `token_source` for the numbers."""
    tokens = token_source(split.tokens, context_length, token_memory)
    if split.scored is None:
        return EveryToken(tokens)
    return ScoredTokens(tokens, token_source(split.scored, context_length, token_memory))


def window_losses(model: Model, windows: Windows) -> Float[mx.array, "B T"]:
    """Cross-entropy in nats of each token of the windows given those before it, in float32."""
    logits = model(windows[..., :-1]).astype(mx.float32)
    return cross_entropy(logits, windows[..., 1:])
