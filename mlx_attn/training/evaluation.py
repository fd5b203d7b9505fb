"""Validation: the loss over a whole split, a task's accuracy, and its answers as text."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
from jaxtyping import Float, Integer

from mlx_attn.errors import ConfigError
from mlx_attn.machine.exponentials import cross_entropy
from mlx_attn.machine.streams import cores, parallel_map
from mlx_attn.model.gpt import GPT
from mlx_attn.text.corpus import Split
from mlx_attn.text.tasks import ABILITIES
from mlx_attn.text.tokenizers import Tokenizer
from mlx_attn.training.batches import last_start, read_windows
from mlx_attn.training.distributed import SINGLE_PROCESS, Distributed


def task_predictions(model: GPT, split: Split, tokenizer: Tokenizer) -> str:
    """The first document of a task with the model's answers in it.

    Behind each wrong answer stands the right one in brackets: `k3 v5[v1]`. The model must be in
    evaluation mode.
    """
    starts, abilities = np.asarray(split.document_starts), np.asarray(split.token_abilities)
    document = slice(starts[0], starts[1])
    tokens, asked = split.tokens[document], abilities[document] == ABILITIES.index("answer")
    likeliest = np.array(model(mx.array(tokens[None])).argmax(axis=-1))[0]
    texts = [tokenizer.decode([token]) for token in tokens]
    for i in np.flatnonzero(asked[1:] & (likeliest[:-1] != tokens[1:])):
        texts[i + 1] = f"{tokenizer.decode([likeliest[i]])}[{texts[i + 1].strip()}]"
    return "".join(texts).strip()


EVALUATION_TOKENS = 2048
"""Tokens that an evaluation computes at a time, about: fewer than what a step has in memory."""

SPAN = 256
"""Forward passes whose losses are in memory, until they are added up."""

LOGITS = 2**23
"""Logits that a core has in memory at a time: 34 MB, and as much again for each thing done to them.

A large vocabulary's are computed for a part of the tokens after the other."""

_COPIES = 6
"""Arrays of the logits' size that their exponentials take, themselves included."""

Measure = Callable[[Float[mx.array, "1 N V"], Integer[mx.array, "1 N"]], mx.array]
"""Numbers for every target, from its logits in float32: shape "*measures 1 N"."""

_WINDOW = [("start", np.int64), ("first", np.int64), ("last", np.int64)]
Windows = np.recarray
"""Each T + 1 tokens from its `start`, of which the targets `first` to `last` are scored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What a validation found; the fields are also its keys in JSON.

    Attributes:
        bits_per_byte: The loss per byte of text: comparable between tokenizers. None for a task,
            whose symbols have no meaningful bytes.
        above_floor: Bits per byte above the exact entropy of the text, where that is known; for a
            task, nats per scored token above its floor.
    """

    val_loss: float  # nats per scored token
    bits_per_byte: float | None = None
    above_floor: float | None = None
    abilities: Mapping[str, float] = field(default_factory=dict)  # shares of `above_floor`
    accuracy: float | None = None  # share of a task's answers predicted right; None for a text


def evaluation_record(evaluation: Evaluation | None) -> dict[str, Any]:
    """Flat JSON keys, to be joined with those of what reports the evaluation.

    Where there was no validation, all but `abilities` are None.
    """
    if evaluation is None:
        return {field.name: None for field in fields(Evaluation)} | {"abilities": {}}
    return asdict(evaluation)


class Evaluator:
    """Evaluates a model on one split: a call returns the loss over all of it, without dropout.

    Args:
        split: Tokens, and what is known of them.
        context_length: Longest window; a shorter text makes one window.
        ranks: The processes that share the windows; the result is the same on all of them.

    Raises:
        ConfigError: There is no token to score.
    """

    def __init__(self, split: Split, context_length: int, ranks: Distributed = SINGLE_PROCESS):
        n_tokens = len(split.tokens)
        if n_tokens < 2:
            raise ConfigError(
                f"the validation text has {n_tokens} tokens, and at least 2 are needed to score "
                "one: use a longer text"
            )
        self.split, self.ranks = split, ranks
        self.context_length = min(context_length, n_tokens - 1)
        self._batch_size = _batch_size(self.context_length)
        self.windows = evaluation_windows(n_tokens, self.context_length, split.document_starts)

    def __call__(self, model: GPT) -> Evaluation:
        """The model's loss over the whole split; the model's training mode is left as it was."""
        training = model.training
        model.eval()
        spans = self._spans(model, cross_entropy if self.split.scored is None else _answers)
        sums = np.sum([_sums(self.split, span, measured) for span, measured in spans], axis=0)
        model.train(training)
        return _evaluation(self.split, sums.tolist())

    def try_out(self, model: GPT) -> float:
        """Read a batch on every core, without a result; returns its share of all windows."""
        training = model.training
        model.eval()
        windows = self.windows[: self._batch_size * cores()]
        for _ in self._measured(model, cross_entropy, list(_parts(windows, self._batch_size))):
            pass
        model.train(training)
        return len(windows) / len(self.windows)

    def token_losses(self, model: GPT) -> Float[np.ndarray, " N"]:
        """Nats of each token of the split given those before it; 0 for the first one."""
        losses = np.zeros(len(self.split.tokens))
        for span, measured in self._spans(model, cross_entropy):
            losses[span] = measured
        return losses

    def _spans(
        self, model: GPT, measure: Measure
    ) -> Iterator[tuple[slice, Float[np.ndarray, "*measures N"]]]:
        """What `measure` says of the tokens but the first, span after span."""
        place = 1
        for windows in _parts(self.windows, self._batch_size * SPAN):
            span = slice(place, int(windows[-1].start + windows[-1].last + 1))
            yield span, self._over_span(model, measure, windows, span)
            place = span.stop

    def _over_span(
        self, model: GPT, measure: Measure, windows: Windows, span: slice
    ) -> Float[np.ndarray, "*measures N"]:
        """What `measure` says of a span's tokens, from all ranks."""
        batches = self.ranks.share(list(_parts(windows, self._batch_size)))
        measured = list(self._measured(model, measure, batches))
        measures = self.ranks.first(list(measured[0].shape[:-2]) if measured else None)
        numbers = np.zeros((*measures, span.stop - span.start), np.float32)
        for batch, rows in zip(batches, measured, strict=True):
            for i, (start, first, last) in enumerate(batch.tolist()):
                place = start + 1 - span.start
                numbers[..., place + first : place + last] = rows[..., i, first:last]
        return np.array(self.ranks.sum(mx.array(numbers)), np.float64)

    def _measured(
        self, model: GPT, measure: Measure, batches: Sequence[Windows]
    ) -> Iterator[Float[np.ndarray, "*measures B T"]]:
        """What `measure` says of each batch, computed on all cores."""
        length = self.context_length + 1
        for several in _parts(batches, cores()):
            read = (read_windows(self.split.tokens, batch.start, length) for batch in several)
            windows = [mx.array(batch) for batch in read]
            for parts in parallel_map(partial(_by_parts, model, measure), windows):
                numbers = np.concatenate([np.array(part) for part in parts], axis=-1)
                yield numbers.reshape(*numbers.shape[:-2], -1, self.context_length)

    def texts(self, count: int) -> Integer[np.ndarray, "B T"]:
        """At most `count` of the windows as tokens, evenly spread over the split."""
        spread = np.linspace(0, len(self.windows) - 1, count).astype(int)
        starts = self.windows.start[np.unique(spread)]
        return read_windows(self.split.tokens, starts, self.context_length).astype(np.int64)


def _by_parts(model: GPT, measure: Measure, windows: Integer[mx.array, "B T1"]) -> list[mx.array]:
    """A measure of every target of some windows, part after part: "*measures 1 N" each."""
    features, targets = model.features(windows[:, :-1]), windows[:, 1:].reshape(1, -1)
    x = features.reshape(1, -1, features.shape[-1])
    size = _rows(model.config.vocab_size)
    parts = [slice(start, start + size) for start in range(0, targets.size, size)]
    return [measure(model.head(x[:, part]).astype(mx.float32), targets[:, part]) for part in parts]


def _rows(vocab_size: int) -> int:
    return max(1, LOGITS // vocab_size)


def _answers(
    logits: Float[mx.array, "1 N V"], targets: Integer[mx.array, "1 N"]
) -> Float[mx.array, "2 1 N"]:
    """The losses, and 1 where the likeliest token is the right one, else 0."""
    right = logits.argmax(axis=-1) == targets
    return mx.stack([cross_entropy(logits, targets), right.astype(mx.float32)])


def evaluation_memory(context_length: int, vocab_size: int) -> int:
    """The most bytes of an evaluation's logits: a part on every core, and what becomes of it."""
    tokens = min(_rows(vocab_size), _batch_size(context_length) * context_length)
    return _COPIES * 4 * cores() * tokens * vocab_size


def _batch_size(context_length: int) -> int:
    """Windows that a core reads at a time."""
    return max(1, EVALUATION_TOKENS // cores() // context_length)


def _parts(of: Any, size: int) -> Iterator[Any]:
    return (of[i : i + size] for i in range(0, len(of), size))


def _sums(
    split: Split, span: slice, measured: Float[np.ndarray, "*measures N"]
) -> Float[np.ndarray, " sums"]:
    """Of a span: a task's right answers and all its answers; nats, and nats by ability if known."""
    right, answers, losses = 0.0, 0, measured
    if split.scored is not None:
        losses, is_right = measured * np.asarray(split.scored)[span]
        is_answer = np.asarray(split.token_abilities)[span] == ABILITIES.index("answer")
        right, answers = is_right[is_answer].sum(), is_answer.sum()
    by_ability = np.empty(0)
    if split.token_abilities is not None and split.ability_floor_nats:
        count = len(split.ability_floor_nats)
        by_ability = np.bincount(split.token_abilities[span], losses, minlength=count)
    return np.array([right, answers, losses.sum(), *by_ability])


def _evaluation(split: Split, sums: Sequence[float]) -> Evaluation:
    """A task's loss is counted per scored token, a text's per byte too, whatever its tokenizer."""
    right, answers, nats, *by_ability = sums
    is_text = split.scored is None
    tokens = len(split.tokens) - 1 if is_text else split.n_scored
    unit = math.log(2) * split.n_bytes if is_text else tokens
    floors = (split.ability_floor_nats or {}).items()
    abilities = {
        name: (spent - floor) / unit
        for (name, floor), spent in zip(floors, by_ability, strict=False)
    }
    return Evaluation(
        val_loss=nats / tokens,
        bits_per_byte=nats / unit if is_text else None,
        above_floor=None if split.floor_nats is None else (nats - split.floor_nats) / unit,
        abilities=abilities,
        accuracy=None if is_text else right / answers,
    )


def losses_by_ability(evaluation: Evaluation, split: Split) -> dict[str, float]:
    """Return the loss of the tokens that call for each ability, in nats per such token.

    Empty if the split does not say what its tokens call for, and for a task.
    """
    floors = split.ability_floor_nats
    if split.scored is not None or split.token_abilities is None or not floors:
        return {}
    unit = math.log(2) * split.n_bytes
    counts = np.bincount(np.asarray(split.token_abilities)[1:], minlength=len(floors))
    return {
        name: (evaluation.abilities[name] * unit + floor) / int(count)
        for (name, floor), count in zip(floors.items(), counts, strict=False)
        if count
    }


def beginning(split: Split, share: float) -> Split:
    """Return the first part of a split; it ends with a document if documents are known."""
    stop = max(2, int(share * len(split.tokens)))
    starts = split.document_starts
    if starts is not None:
        starts = starts[: max(2, int(np.searchsorted(starts, stop)))]
        stop, starts = int(starts[-1]) + 1, starts[:-1]
    abilities, scored = split.token_abilities, split.scored
    return replace(
        split,
        tokens=split.tokens[:stop],
        document_starts=starts,
        token_abilities=None if abilities is None else abilities[:stop],
        scored=None if scored is None else scored[:stop],
        floor_nats=None,
    )


def evaluation_windows(
    n_tokens: int,
    context_length: int,
    document_starts: Integer[np.ndarray, " documents"] | None = None,
) -> Windows:
    """Windows that together score every token but the first exactly once.

    Side by side in a plain text. Where documents are known, a window ends with the last document
    that fits whole, so that no document is read without its beginning unless it is longer than T.

    Raises:
        ConfigError: The text is shorter than one window.
    """
    last = last_start(n_tokens, context_length)
    stops = np.fromiter(_stops(n_tokens - 1, context_length, document_starts), np.int64)
    places = np.insert(stops[:-1], 0, 0)
    starts = np.minimum(places, last)
    return np.rec.fromarrays([starts, places - starts, stops - starts], dtype=_WINDOW)


def _stops(
    end: int, T: int, document_starts: Integer[np.ndarray, " documents"] | None
) -> Iterator[int]:
    """Where the windows end, of which each begins where the one before it ends."""
    stop = 0
    while stop < end:
        place, stop = stop, min(stop + T, end)
        if document_starts is not None and stop < end:
            i = int(np.searchsorted(document_starts, stop, side="right")) - 1
            stop = int(document_starts[i]) if i >= 0 and document_starts[i] > place else stop
        yield stop
