"""Validation over the whole split: every token once, on the same windows for every variant.

Of a text every token is scored; of a task those that its mask says, and whether the likeliest token
is the right one counts too.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple, dataclass, field

import mlx.core as mx
import numpy as np
from jaxtyping import Float, Integer

from mlx_attn.errors import ConfigError
from mlx_attn.model import GPT
from mlx_attn.text.corpus import Split
from mlx_attn.text.tasks import ABILITIES
from mlx_attn.training.batches import last_start
from mlx_attn.training.objective import window_answers, window_losses
from mlx_attn.training.ranks import ALONE, Ranks
from mlx_attn.training.tokens import read_windows

EVALUATION_TOKENS = 4096
"""Tokens per forward pass of an evaluation, about."""

Measure = Callable[[GPT, Integer[mx.array, "B T1"]], Float[mx.array, "*measures B T"]]
"""Numbers for every target of some windows."""


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
        loss: Nats per scored token.
        bits_per_byte: The same loss per byte of text: comparable between tokenizers. None for a
            task, whose symbols have no meaningful bytes.
        tokens: Tokens scored.
        above_floor: Bits per byte above the exact entropy of the text, where that is known; for a
            task, nats per scored token above its floor.
        abilities: What each ability contributes to `above_floor`, where the text is tagged.
        accuracy: Share of a task's answers whose likeliest prediction is right; None for a text.
    """

    loss: float
    bits_per_byte: float | None
    tokens: int
    above_floor: float | None = None
    abilities: Mapping[str, float] = field(default_factory=dict)
    accuracy: float | None = None


class Evaluator:
    """Evaluates a model on one split: a call returns the loss over all of it, without dropout.

    Args:
        split: Tokens, and what is known of them.
        context_length: Longest window; a shorter text makes one window.
        ranks: The processes that share the windows; the result is the same on all of them.

    Raises:
        ConfigError: There is no token to score.
    """

    def __init__(self, split: Split, context_length: int, ranks: Ranks = ALONE):
        n_tokens = len(split.tokens)
        if n_tokens < 2:
            raise ConfigError(
                f"the validation text has {n_tokens} tokens, and at least 2 are needed to score "
                "one: use a longer text"
            )
        self.split, self.ranks = split, ranks
        self.context_length = min(context_length, n_tokens - 1)
        self.windows = evaluation_windows(n_tokens, self.context_length, split.document_starts)
        self._measure, self._summary = _TEXT if split.scored is None else _TASK

    def __call__(self, model: GPT) -> Evaluation:
        """The model's loss over the whole split; the model's training mode is left as it was."""
        training = model.training
        model.eval()
        measured = self._over_tokens(model, self._measure)
        model.train(training)
        return self._summary(self.split, measured)

    def token_losses(self, model: GPT) -> Float[np.ndarray, " N"]:
        """Nats of each token of the split given those before it; 0 for the first one."""
        return self._over_tokens(model, window_losses)

    def _over_tokens(self, model: GPT, measure: Measure) -> Float[np.ndarray, "*measures N"]:
        """What `measure` says of each token of the split; 0 for the first one."""
        batches = self.ranks.share(list(self._batches()))
        measured = [self._measured(model, measure, windows) for windows in batches]
        measures = self.ranks.first(list(measured[0].shape[:-2]) if measured else None)
        numbers = np.zeros((*measures, len(self.split.tokens)), np.float32)
        for windows, batch in zip(batches, measured, strict=True):
            for i, (start, first, last) in enumerate(map(astuple, windows)):
                numbers[..., start + 1 + first : start + 1 + last] = batch[..., i, first:last]
        return np.array(self.ranks.sum(mx.array(numbers)), np.float64)

    def _measured(
        self, model: GPT, measure: Measure, windows: list[Window]
    ) -> Float[np.ndarray, "*measures B T"]:
        starts = np.array([window.start for window in windows])
        tokens = read_windows(self.split.tokens, starts, self.context_length + 1)
        return np.array(measure(model, mx.array(tokens)))

    def texts(self, count: int) -> Integer[np.ndarray, "B T"]:
        """At most `count` of the windows as tokens, evenly spread over the split."""
        spread = np.linspace(0, len(self.windows) - 1, count).astype(int)
        starts = np.array([self.windows[i].start for i in np.unique(spread)])
        return read_windows(self.split.tokens, starts, self.context_length).astype(np.int64)

    def _batches(self) -> Iterator[list[Window]]:
        size = max(1, EVALUATION_TOKENS // self.context_length)
        for i in range(0, len(self.windows), size):
            yield self.windows[i : i + size]


def _text_evaluation(split: Split, losses: Float[np.ndarray, " N"]) -> Evaluation:
    """In bits per byte, which do not depend on the tokenizer."""
    tokens, nats = len(losses) - 1, float(losses.sum())
    per_bit_and_byte = math.log(2) * split.n_bytes
    return Evaluation(
        loss=nats / tokens,
        bits_per_byte=nats / per_bit_and_byte,
        tokens=tokens,
        above_floor=_above_floor(split, nats, per_bit_and_byte),
        abilities=_by_ability(split, losses, per_bit_and_byte),
    )


def _task_evaluation(split: Split, measured: Float[np.ndarray, "2 N"]) -> Evaluation:
    """In nats per scored token, and how many answers are right."""
    losses, right = measured * np.asarray(split.scored)
    tokens, nats = split.n_scored, float(losses.sum())
    answers = np.asarray(split.token_abilities) == ABILITIES.index("answer")
    return Evaluation(
        loss=nats / tokens,
        bits_per_byte=None,
        tokens=tokens,
        above_floor=_above_floor(split, nats, tokens),
        abilities=_by_ability(split, losses, tokens),
        accuracy=float(right[answers].mean()),
    )


def _above_floor(split: Split, nats: float, unit: int | float) -> float | None:
    return None if split.floor_nats is None else (nats - split.floor_nats) / unit


def _by_ability(
    split: Split, losses: Float[np.ndarray, " N"], unit: int | float
) -> Mapping[str, float]:
    if split.token_abilities is None or not split.ability_floor_nats:
        return {}
    floors = split.ability_floor_nats
    paid = np.bincount(split.token_abilities, losses, minlength=len(floors))
    return {
        name: (float(nats_paid) - nats_floor) / unit
        for (name, nats_floor), nats_paid in zip(floors.items(), paid, strict=True)
    }


_TEXT = window_losses, _text_evaluation
_TASK = window_answers, _task_evaluation


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
