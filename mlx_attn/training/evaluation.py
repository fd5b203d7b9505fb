"""Validation over the whole split: every token once, on the same windows for every variant."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np
from jaxtyping import Float, Integer

from mlx_attn.errors import ConfigError
from mlx_attn.model import GPT
from mlx_attn.text.corpus import Split
from mlx_attn.training.batches import last_start
from mlx_attn.training.step import window_losses
from mlx_attn.training.tokens import read_windows

EVALUATION_TOKENS = 4096
"""Tokens per forward pass of an evaluation, about."""


@dataclass(frozen=True, slots=True)
class Window:
    """T + 1 tokens from `start`, of which the targets `first` to `last` are scored."""

    start: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result of a validation.

    Attributes:
        loss: Nats per token.
        bits_per_byte: The same loss per byte of text: comparable between tokenizers.
        tokens: Tokens scored.
        above_floor: Bits per byte above the exact entropy of the text, where that is known.
        abilities: What each ability contributes to `above_floor`, where the text is tagged.
    """

    loss: float
    bits_per_byte: float
    tokens: int
    above_floor: float | None = None
    abilities: Mapping[str, float] = field(default_factory=dict)


class Evaluator:
    """Evaluates a model on one split: a call returns the loss over all of it, without dropout.

    Args:
        split: Tokens, and what is known of them.
        context_length: Longest window; a shorter text makes one window.

    Raises:
        ConfigError: There is no token to score.
    """

    def __init__(self, split: Split, context_length: int):
        n_tokens = len(split.tokens)
        if n_tokens < 2:
            raise ConfigError(
                f"the validation text has {n_tokens} tokens, and at least 2 are needed to score "
                "one: use a longer text"
            )
        self.split = split
        self.context_length = min(context_length, n_tokens - 1)
        self.windows = evaluation_windows(n_tokens, self.context_length, split.document_starts)

    def __call__(self, model: GPT) -> Evaluation:
        """The model's loss over the whole split; the model's training mode is left as it was."""
        training = model.training
        model.eval()
        losses = self.token_losses(model)
        model.train(training)
        return self._summary(losses)

    def token_losses(self, model: GPT) -> Float[np.ndarray, " N"]:
        """Nats of each token of the split given those before it; 0 for the first one."""
        losses = np.zeros(len(self.split.tokens))
        for windows in self._batches():
            starts = np.array([window.start for window in windows])
            tokens = read_windows(self.split.tokens, starts, self.context_length + 1)
            batch = np.array(window_losses(model, mx.array(tokens)))
            for window, row in zip(windows, batch, strict=True):
                place = window.start + 1
                losses[place + window.first : place + window.last] = row[window.first : window.last]
        return losses

    def texts(self, count: int) -> Integer[np.ndarray, "B T"]:
        """At most `count` of the windows as tokens, evenly spread over the split."""
        spread = np.linspace(0, len(self.windows) - 1, count).astype(int)
        starts = np.array([self.windows[i].start for i in np.unique(spread)])
        return read_windows(self.split.tokens, starts, self.context_length).astype(np.int64)

    def _batches(self) -> Iterator[list[Window]]:
        size = max(1, EVALUATION_TOKENS // self.context_length)
        for i in range(0, len(self.windows), size):
            yield self.windows[i : i + size]

    def _summary(self, losses: Float[np.ndarray, " N"]) -> Evaluation:
        tokens, nats = len(losses) - 1, float(losses.sum())
        per_bit_and_byte = math.log(2) * self.split.n_bytes
        floor, abilities = self.split.floor_nats, {}
        if self.split.token_abilities is not None and self.split.ability_floor_nats:
            floors = self.split.ability_floor_nats
            paid = np.bincount(self.split.token_abilities, losses, minlength=len(floors))
            abilities = {
                name: (float(nats_paid) - nats_floor) / per_bit_and_byte
                for (name, nats_floor), nats_paid in zip(floors.items(), paid, strict=True)
            }
        return Evaluation(
            loss=nats / tokens,
            bits_per_byte=nats / per_bit_and_byte,
            tokens=tokens,
            above_floor=None if floor is None else (nats - floor) / per_bit_and_byte,
            abilities=abilities,
        )


def evaluation_windows(
    n_tokens: int,
    context_length: int,
    document_starts: Integer[np.ndarray, " documents"] | None = None,
) -> list[Window]:
    """Windows that together score every token but the first exactly once.

    Side by side in a plain text. Where documents are known, a window ends with the last document
    that fits whole, so that no document is read without its beginning unless it is longer than T.

    Raises:
        ConfigError: The text is shorter than one window.
    """
    last, T, end = last_start(n_tokens, context_length), context_length, n_tokens - 1
    windows, place = [], 0
    while place < end:
        stop = min(place + T, end)
        if document_starts is not None and stop < end:
            i = int(np.searchsorted(document_starts, stop, side="right")) - 1
            stop = int(document_starts[i]) if i >= 0 and document_starts[i] > place else stop
        start = min(place, last)
        windows.append(Window(start, place - start, stop - start))
        place = stop
    return windows
