"""The windows of the corpus that a step sees: a pure function of (seed, step).

Nothing is shuffled in place and no loader state exists, so resuming restores none. A window is
identified by its start position; the step gathers its tokens on the device.
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
"""Separates the random numbers of batches from others drawn with the same seed."""


Starts = Integer[mx.array, " B"]  # the start positions of windows


class RandomWindows:
    """Windows drawn anywhere, or only at given positions such as the starts of documents.

    Args:
        n_tokens: Length of the corpus.
        context_length: Length T of a window; T + 1 tokens are read.
        batch_size: Windows per step.
        places: Where windows may start; None means anywhere.
    """

    def __init__(
        self,
        n_tokens: int,
        context_length: int,
        batch_size: int,
        places: Integer[np.ndarray, " places"] | None = None,
    ):
        # The last start whose T + 1 tokens fit.
        self.last = last_start(n_tokens, context_length)
        self.batch_size = batch_size
        # Random windows overlap, so an epoch is a count of tokens: as many as the text has.
        self.steps_per_epoch = n_tokens / (batch_size * context_length)
        allowed = None if places is None else places[places <= self.last]
        self.places = None if allowed is None or not len(allowed) else mx.array(allowed)

    def starts(self, seed: int, step: int) -> Starts:
        """Draw the starts of a step's windows uniformly."""
        key = mx.array([seed ^ BATCH_STREAM, step], dtype=mx.uint32)
        choices = self.last + 1 if self.places is None else self.places.size
        # Keys are twice 32 random bits. `randint` draws floats, which reach only every sixth start
        # of a corpus of 100 million tokens.
        drawn = _below(choices, mx.random.split(key, self.batch_size))
        return drawn if self.places is None else self.places[drawn]


def _below(choices: int, bits: Integer[mx.array, "B 2"]) -> Integer[mx.array, " B"]:
    """Return random numbers from 0 to `choices` - 1, from 32 random bits if these suffice."""
    if choices < 2**32:
        # The remainder favours small numbers by less than choices / 2^32.
        return bits[:, 0] % choices
    high, low = bits.astype(mx.uint64).moveaxis(1, 0)
    # [B, 2] -> [B]: two words make one number of 64 bits.
    return ((high << 32 | low) % mx.array(choices, mx.uint64)).astype(mx.int64)


class EpochWindows:
    """Adjacent windows, each once per epoch, in a new order every epoch (the book's loader).

    An incomplete last batch is dropped. If a text has fewer windows than a batch, the batch is
    smaller. See `RandomWindows` for the arguments.
    """

    def __init__(self, n_tokens: int, context_length: int, batch_size: int):
        # Starts are 0, T, 2 T, ...
        self.n_windows = last_start(n_tokens, context_length) // context_length + 1
        self.context_length = context_length
        self.batch_size = min(batch_size, self.n_windows)
        self.steps_per_epoch = self.n_windows // self.batch_size

    def starts(self, seed: int, step: int) -> Starts:
        """Return the starts of a step, from the order of its epoch."""
        # No state: the epoch and the place in it follow from the step.
        epoch, place = divmod(step, self.steps_per_epoch)
        order = epoch_order(seed, epoch, self.n_windows)
        windows = order[place * self.batch_size :][: self.batch_size]
        # [B]; int64, because a start may exceed the uint32 of the window's number.
        return mx.array(windows.astype(np.int64) * self.context_length)


BatchSampler = RandomWindows | EpochWindows  # draws the windows of a step


@lru_cache(maxsize=4)
def epoch_order(seed: int, epoch: int, n_windows: int) -> Integer[np.ndarray, " windows"]:
    """Return the order of an epoch's windows."""
    generator = np.random.Generator(np.random.Philox(key=[seed ^ BATCH_STREAM, epoch]))
    # Philox is a counter-based generator: key (seed, epoch) gives the same order everywhere.
    return generator.permutation(np.arange(n_windows, dtype=np.uint32))  # half of int64's memory


def last_start(n_tokens: int, context_length: int) -> int:
    """Return the last position where a window of T inputs and their targets fits.

    Raises:
        ConfigError: No window fits.
    """
    if n_tokens <= context_length:
        raise ConfigError(
            f"the text has {n_tokens} tokens to train on, too few for "
            f"context_length={context_length}: use a longer text or a shorter context"
        )
    return n_tokens - context_length - 1


MEGABYTE = 1_000_000


class ResidentTokens:
    """All tokens on the device, so that the host sends only start positions.

    `fetch` runs on the host before a step and `windows` inside it; `StreamedTokens` divides the
    work differently.

    Args:
        tokens: The training text; a GPU uses a memory-mapped file without copying it.
        context_length: T.
    """

    def __init__(self, tokens: Integer[np.ndarray, " N"], context_length: int):
        self._tokens = mx.asarray(tokens)
        # From NumPy: a lazy `mx.arange` would be computed again in every compiled step.
        self._offsets = mx.array(np.arange(context_length + 1, dtype=np.int32))

    def fetch(self, starts: Starts) -> Starts:
        """Return the starts themselves."""
        return starts

    def windows(self, fetched: Starts) -> Integer[mx.array, "B T1"]:
        """Return the T + 1 tokens from each start."""
        # [B, 1] + [T + 1] -> [B, T + 1]
        return self._tokens[fetched[..., None] + self._offsets]


class StreamedTokens:
    """Tokens that stay on disk in a memory-mapped file; the host reads the windows of a step."""

    def __init__(self, tokens: Integer[np.ndarray, " N"], context_length: int):
        self._tokens, self._length = tokens, context_length + 1

    def fetch(self, starts: Starts) -> Integer[mx.array, "B T1"]:
        """Read the T + 1 tokens from each start."""
        # One read per step on the host; the device never holds the text.
        return mx.array(read_windows(self._tokens, np.array(starts, np.int64), self._length))

    def windows(self, fetched: Integer[mx.array, "B T1"]) -> Integer[mx.array, "B T1"]:
        """Return the windows, which `fetch` has read already."""
        return fetched


TokenSource = ResidentTokens | StreamedTokens


def token_source(
    tokens: Integer[np.ndarray, " N"], context_length: int, token_memory: int
) -> TokenSource:
    """Keep the tokens in memory if they take at most `token_memory` megabytes."""
    fits = tokens.nbytes <= token_memory * MEGABYTE
    return (ResidentTokens if fits else StreamedTokens)(tokens, context_length)


def read_windows(
    tokens: Integer[np.ndarray, " N"], starts: Integer[np.ndarray, " B"], length: int
) -> Integer[np.ndarray, "B length"]:
    """Read the `length` tokens from each start.

    It maps the file anew: an open map keeps in memory every page that was ever read, which would
    grow to the whole file.
    """
    # [B, 1] + [length] -> [B, length]
    return np.asarray(reopened(tokens)[starts[..., None] + np.arange(length)])


def reopened(tokens: Integer[np.ndarray, " N"]) -> Integer[np.ndarray, " N"]:
    """Map the same file again; return arrays unchanged that are not maps of a whole file."""
    if isinstance(tokens, np.memmap) and isinstance(tokens.base, mmap):
        return np.memmap(str(tokens.filename), tokens.dtype, "r", tokens.offset, tokens.shape)
    return tokens


Scalar = Float[mx.array, ""]

Windows = Integer[mx.array, "B T1"]
Scored = Integer[mx.array, "B T"]
Model = Callable[[mx.array], mx.array]  # maps tokens to logits


class EveryToken:
    """The loss of a text: the mean over all tokens of all windows.

    Every objective has four methods. `fetch` runs on the host before a step; `gather` turns its
    result into a batch inside the step; `loss` is the batch's mean loss in nats per scored token;
    and `weight` is the number of those tokens.
    """

    def __init__(self, tokens: TokenSource):
        self.fetch, self.gather = tokens.fetch, tokens.windows

    def loss(self, model: Model, batch: Windows) -> Scalar:
        """Return the mean nats per token.

        It averages each window first: on a processor MLX adds numbers one after another, and a sum
        over a whole batch would be wrong in the fifth digit.
        """
        # [B, T] -> [B] -> []
        return window_losses(model, batch).mean(-1).mean(-1)

    def weight(self, batch: Windows) -> Scalar:
        """Count all tokens but the first of each window."""
        return mx.array(float(batch.shape[-2] * (batch.shape[-1] - 1)))


class ScoredTokens:
    """The loss of a task: the mean over the scored tokens of all windows.

    Args:
        tokens: The tokens of the task.
        scored: 1 for each token that is scored, else 0.
    """

    def __init__(self, tokens: TokenSource, scored: TokenSource):
        self._sources = tokens, scored

    def fetch(self, starts: Starts) -> tuple[mx.array, ...]:
        """Fetch the tokens and their scores."""
        return tuple(source.fetch(starts) for source in self._sources)

    def gather(self, fetched: tuple[mx.array, ...]) -> tuple[Windows, Scored]:
        """Return the windows, and 1 for each target that is scored."""
        windows, scored = (s.windows(f) for s, f in zip(self._sources, fetched, strict=True))
        # The first token of a window is not a target.
        return windows, scored[..., 1:]

    def loss(self, model: Model, batch: tuple[Windows, Scored]) -> Scalar:
        """Return the mean nats per scored token; 0 if no token is scored."""
        windows, scored = batch
        # [B, T] * [B, T]: tokens that are not scored add 0.
        total = (window_losses(model, windows) * scored).sum()
        # A window without scored tokens has loss 0 instead of 0 / 0.
        return total / mx.maximum(scored.sum(), 1)

    def weight(self, batch: tuple[Windows, Scored]) -> Scalar:
        """Count the scored tokens."""
        # The shards of a batch are weighted by this number, which differs between them.
        return batch[1].sum().astype(mx.float32)


Objective = EveryToken | ScoredTokens


def objective_for(split: Split, context_length: int, token_memory: int) -> Objective:
    """Return the objective for training on this text; see `token_source` for the arguments."""
    tokens = token_source(split.tokens, context_length, token_memory)
    if split.scored is None:
        return EveryToken(tokens)
    return ScoredTokens(tokens, token_source(split.scored, context_length, token_memory))


def window_losses(model: Model, windows: Windows) -> Float[mx.array, "B T"]:
    """Return each token's cross-entropy in nats given those before it, in float32."""
    # [B, T, V] in float32: bfloat16 would round the sum of the exponentials.
    logits = model(windows[..., :-1]).astype(mx.float32)
    return cross_entropy(logits, windows[..., 1:])
