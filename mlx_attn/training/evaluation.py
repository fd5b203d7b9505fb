"""Validation: the loss over a whole split, and a task's accuracy."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
from jaxtyping import Float, Integer

from mlx_attn.errors import ConfigError
from mlx_attn.machine.operations import cross_entropy
from mlx_attn.machine.streams import cores, in_turns
from mlx_attn.model.gpt import GPT
from mlx_attn.text.corpus import Split
from mlx_attn.text.tasks import ABILITIES

EVALUATION_TOKENS = 2048  # about how many tokens to compute at a time: fewer than a training step

LOGITS = 2**23
"""The most logits per core at a time: 34 MB, and as much again for each operation on them.

With a large vocabulary, the tokens are computed in parts."""

Windows = np.recarray
"""Each has T + 1 tokens from `start`; the targets `first` to `last` are scored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The results of a validation; the fields are also its keys in JSON."""

    val_loss: float  # nats per scored token
    # The loss per byte of text: comparable between tokenizers. None for a task, whose symbols are
    # not bytes of text.
    bits_per_byte: float | None = None
    # Bits per byte above the exact entropy of the text, if known; for a task, nats per scored token
    # above its floor.
    above_floor: float | None = None
    abilities: Mapping[str, float] = field(default_factory=dict)  # shares of `above_floor`
    accuracy: float | None = None  # of a task's answers; None for a text


def evaluation_record(evaluation: Evaluation | None) -> dict[str, Any]:
    """Return flat JSON keys, to merge into the record of an event.

    Without a validation, all values but `abilities` are None.
    """
    record = {key.name: getattr(evaluation, key.name, None) for key in fields(Evaluation)}
    record["abilities"] = dict(record["abilities"] or {})
    return record


class Evaluator:
    """Evaluates a model on one split; a call returns the loss over all of it, without dropout.

    Args:
        split: The tokens to score.
        context_length: Longest window; a shorter text makes one window.

    Raises:
        ConfigError: The text is too short to score a token.
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
        """Return the loss over the whole split; leave the model's training mode unchanged."""
        return self._evaluation(*self.measures(model, self.windows))

    def estimate(self, model: GPT, count: int) -> float:
        """Return the mean nats per scored token of up to `count` windows, for a curve."""
        return self._evaluation(*self.measures(model, self._spread(count))).val_loss

    def measures(
        self, model: GPT, windows: Windows
    ) -> tuple[Integer[np.ndarray, " N"], Float[np.ndarray, "measures N"]]:
        """Return the tokens that windows score, as places in the split, and their measures."""
        training, T = model.training, self.context_length
        model.eval()
        size = max(1, EVALUATION_TOKENS // cores() // T)
        batches = (windows.start[i : i + size] for i in range(0, len(windows), size))
        tokens = (mx.array(self._read(starts, T + 1)) for starts in batches)
        measured = in_turns(partial(self._measured, model), tokens, at_once=1)
        # Parts [measures, 1, n] -> [measures, windows, T]
        parts = [np.array(part) for of_batch in measured for part in of_batch]
        measures = np.concatenate(parts, axis=-1).reshape(len(parts[0]), len(windows), T)
        model.train(training)
        first, last, targets = windows.first[:, None], windows.last[:, None], np.arange(T)
        scored = (first <= targets) & (targets < last)
        # Target i of a window is its token i + 1.
        places = (windows.start[:, None] + 1 + targets)[scored]
        # float64, because sums over millions of tokens follow.
        return places, measures[:, scored].astype(np.float64)

    def _read(
        self, starts: Integer[np.ndarray, " B"], length: int
    ) -> Integer[np.ndarray, "B length"]:
        # [B, 1] + [length] -> [B, length]
        return np.asarray(self.split.tokens[starts[:, None] + np.arange(length)])

    def _measured(
        self, model: GPT, windows: Integer[mx.array, "B T1"]
    ) -> list[Float[mx.array, "measures 1 n"]]:
        """Return the measures of every target, in parts whose logits fit into memory.

        These are the loss, and for a task whether the answer is right.
        """
        features, targets = model.features(windows[:, :-1]), windows[:, 1:].reshape(1, -1)
        # [B, T, C] -> [1, B T, C]: windows need not be whole in a part.
        x = features.reshape(1, -1, features.shape[-1])
        size, parts = max(1, LOGITS // model.config.vocab_size), []
        for start in range(0, targets.size, size):
            # [1, size, V]
            logits = model.head(x[:, start : start + size]).astype(mx.float32)
            right = targets[:, start : start + size]
            measures = [cross_entropy(logits, right)]
            if self.split.scored is not None:
                measures.append(logits.argmax(axis=-1) == right)
            parts.append(mx.stack([measure.astype(mx.float32) for measure in measures]))
        return parts

    def _evaluation(
        self, places: Integer[np.ndarray, " N"], measures: Float[np.ndarray, "measures N"]
    ) -> Evaluation:
        """Return a task's loss by its scored tokens, and a text's also by its bytes."""
        split, floor = self.split, self.split.floor_nats
        # Tokens that are not scored add 0.
        marks = np.ones_like(places) if split.scored is None else np.asarray(split.scored)[places]
        losses = measures[0] * marks
        nats, n_scored = losses.sum(), max(marks.sum(), 1)
        accuracy = None
        if split.scored is not None:
            is_answer = np.asarray(split.token_abilities)[places] == ABILITIES.index("answer")
            accuracy = float(measures[1][is_answer].sum() / max(is_answer.sum(), 1))
        # nats / (ln 2 * bytes) is bits per byte.
        unit = math.log(2) * split.n_bytes if split.scored is None else n_scored
        abilities: dict[str, float] = {}
        if split.token_abilities is not None and split.ability_floor_nats:
            floors = split.ability_floor_nats
            # [abilities]: the losses of each ability's tokens, added up.
            spent = np.bincount(split.token_abilities[places], losses, minlength=len(floors))
            pairs = zip(floors.items(), spent.tolist(), strict=False)
            abilities = {name: (nats - least) / unit for (name, least), nats in pairs}
        return Evaluation(
            val_loss=float(nats / n_scored),
            bits_per_byte=float(nats / unit) if split.scored is None else None,
            above_floor=None if floor is None else float((nats - floor) / unit),
            abilities=abilities,
            accuracy=accuracy,
        )

    def _spread(self, count: int) -> Windows:
        """Return up to `count` windows, evenly spread over the split."""
        # `unique`, because a short split has fewer windows than were asked for.
        chosen = np.unique(np.linspace(0, len(self.windows) - 1, count).astype(int))
        windows: Any = self.windows[chosen]
        return windows

    def texts(self, count: int) -> Integer[np.ndarray, "B T"]:
        """Return up to `count` windows as tokens, evenly spread over the split."""
        return self._read(self._spread(count).start, self.context_length).astype(np.int64)


def evaluation_windows(
    n_tokens: int,
    context_length: int,
    document_starts: Integer[np.ndarray, " documents"] | None = None,
) -> Windows:
    """Return windows that together score every token but the first exactly once.

    In a plain text they are adjacent. If documents are known, a window ends with the last document
    that fits completely, so that a document is read from its beginning unless it is longer than T.
    """
    rows, stop = [], 0
    while stop < n_tokens - 1:
        place, stop = stop, min(stop + context_length, n_tokens - 1)
        if document_starts is not None and stop < n_tokens - 1:
            # Stop at the last document that begins in the window, unless one document fills it.
            last = document_starts[np.searchsorted(document_starts, stop, side="right") - 1]
            stop = int(last) if last > place else stop
        # The last window begins earlier to have T + 1 tokens, and skips targets already scored.
        start = min(place, n_tokens - 1 - context_length)
        rows.append((start, place - start, stop - start))
    kind = np.dtype([("start", np.int64), ("first", np.int64), ("last", np.int64)])
    return np.array(rows, kind).view(np.recarray)
