"""The windows of the corpus that a step sees, a pure function of (seed, step), and their loss.

Nothing is shuffled in place and no loader state exists, so resuming restores none. A window is
identified by its start position; the step gathers its tokens on the device.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache

import mlx.core as mx
import numpy as np
from jaxtyping import Float, Integer

from mlx_attn.errors import ConfigError
from mlx_attn.machine.operations import cross_entropy
from mlx_attn.text.corpus import Split
from mlx_attn.training.config import TrainConfig

_STREAM = 0x6D6C78  # separates the random numbers of batches from others drawn with a seed

Starts = Integer[mx.array, " B"]  # the start positions of windows


class RandomWindows:
    """Windows drawn anywhere, or only at given positions such as the starts of documents.

    Args:
        n_tokens: Length of the corpus.
        context_length: Length T of a window; T + 1 tokens are read.
        batch_size: Windows per step.
        places: Where windows may start, 0 among them; None means anywhere.
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
        # Random windows overlap, so an epoch is a count of tokens: as many as the text has.
        self.steps_per_epoch = n_tokens / (batch_size * context_length)
        self.places = None if places is None else mx.array(places[places <= self.last])

    def starts(self, seed: int, step: int, parts: int = 1) -> Starts:
        """Draw the starts of a step's windows uniformly; `parts` batches are one larger batch."""
        key = mx.array([seed ^ _STREAM, step], dtype=mx.uint32)
        choices = self.last + 1 if self.places is None else self.places.size
        # [B, 2]: keys are twice 32 random bits. `randint` draws floats, which reach only every
        # sixth start of a corpus of 100 million tokens.
        bits = mx.random.split(key, parts * self.batch_size)
        # The remainder favours small numbers by less than choices / 2^32.
        drawn = bits[:, 0] % choices
        return drawn if self.places is None else self.places[drawn]


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

    def starts(self, seed: int, step: int, parts: int = 1) -> Starts:
        """Return the starts of a step of `parts` batches, from the order of their epochs."""
        in_epoch, in_step = self.steps_per_epoch * self.batch_size, parts * self.batch_size
        windows = [
            _epoch_order(seed, number // in_epoch, self.n_windows)[number % in_epoch]
            for number in range(step * in_step, (step + 1) * in_step)
        ]
        # [B]; int64, because a start may exceed the uint32 of the window's number.
        return mx.array(np.array(windows, np.int64) * self.context_length)


BatchSampler = RandomWindows | EpochWindows  # draws the windows of a step


@lru_cache(maxsize=4)
def _epoch_order(seed: int, epoch: int, n_windows: int) -> Integer[np.ndarray, " windows"]:
    # Philox is a counter-based generator: key (seed, epoch) gives the same order everywhere.
    generator = np.random.Generator(np.random.Philox(key=[seed ^ _STREAM, epoch]))
    return generator.permutation(np.arange(n_windows, dtype=np.uint32))  # half of int64's memory


def batch_sampler(split: Split, context_length: int, config: TrainConfig) -> BatchSampler:
    """Return what draws the windows of a recipe."""
    sizes = len(split.tokens), context_length, config.batch_size
    places = document_places(split, context_length)
    if config.windows == "random":
        return RandomWindows(*sizes, places)
    if split.scored is not None and places is not None and context_length % places[1]:
        raise ConfigError(
            f"context_length={context_length} cuts through documents of {places[1]} tokens, which "
            "have a task's facts and questions: with --windows epochs use a multiple of that"
        )
    return EpochWindows(*sizes)


def document_places(split: Split, context_length: int) -> np.ndarray | None:
    """Return where documents start if every document fits into a window, else None.

    A window that starts with its document contains everything that the document refers to. But if
    documents are longer than a window, starting only there would never show their ends.

    Raises:
        ConfigError: Documents of a task do not fit, so that their questions lack the facts.
    """
    starts = split.document_starts
    if starts is None:
        return None
    # The last document ends with the text, whose last token is only a target.
    longest = int(np.diff(starts, append=len(split.tokens) - 1).max())
    if longest <= context_length:
        return starts
    if split.scored is not None:
        raise ConfigError(
            f"context_length={context_length} is too short for a task whose documents take "
            f"{longest} tokens: use --context-length {longest}"
        )
    return None


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


Scalar = Float[mx.array, ""]
Model = Callable[[mx.array], mx.array]  # maps tokens to logits


class Objective:
    """The mean loss of a batch: over all tokens of a text, or over the scored tokens of a task.

    Args:
        tokens: The text to train on; a GPU uses a memory-mapped file without copying it.
        context_length: T.
        scored: Of a task: 1 for each token that is scored, else 0.
    """

    def __init__(
        self,
        tokens: Integer[np.ndarray, " N"],
        context_length: int,
        scored: Integer[np.ndarray, " N"] | None = None,
    ):
        texts = [tokens] if scored is None else [tokens, scored]
        self._texts = [mx.asarray(text) for text in texts]
        # From NumPy: a lazy `mx.arange` would be computed again in every compiled step.
        self._offsets = mx.array(np.arange(context_length + 1, dtype=np.int32))

    def gather(self, starts: Starts) -> list[mx.array]:
        """Return a batch: windows of T + 1 tokens, and of a task which targets are scored."""
        # [B, 1] + [T + 1] -> [B, T + 1]
        places = starts[..., None] + self._offsets
        windows, *scored = (text[places] for text in self._texts)
        # The first token of a window is not a target.
        return [windows, *(marks[..., 1:] for marks in scored)]

    def loss(self, model: Model, batch: Sequence[mx.array]) -> Scalar:
        """Return the mean nats per scored token; 0 if no token is scored."""
        windows, *scored = batch
        losses = window_losses(model, windows)
        if not scored:
            # [B, T] -> [B] -> []. Each window first: on a processor MLX adds numbers one after
            # another, and a sum over a whole batch would be wrong in the fifth digit.
            return losses.mean(-1).mean(-1)
        # [B, T] * [B, T]: tokens that are not scored add 0; without any, 0 / 1 instead of 0 / 0.
        return (losses * scored[0]).sum() / mx.maximum(scored[0].sum(), 1)

    def weight(self, batch: Sequence[mx.array]) -> Scalar:
        """Return the weight of a shard of a batch: its windows, or a task's scored tokens."""
        windows, *scored = batch
        return scored[0].sum().astype(mx.float32) if scored else mx.array(float(len(windows)))


def window_losses(model: Model, windows: Integer[mx.array, "B T1"]) -> Float[mx.array, "B T"]:
    """Return each token's cross-entropy in nats given those before it, in float32."""
    # [B, T, V] in float32: bfloat16 would round the sum of the exponentials.
    logits = model(windows[..., :-1]).astype(mx.float32)
    return cross_entropy(logits, windows[..., 1:])
