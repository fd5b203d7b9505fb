"""The windows of a text on which models are compared."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from jaxtyping import Float, Float64, Integer

from mlx_attn.arrays import named_arrays
from mlx_attn.attention.analysis import ov_circuit, qk_circuit, to_numpy
from mlx_attn.attention.attention import AttentionCache
from mlx_attn.convert.algebra import relative_error
from mlx_attn.convert.model import convert, fold_norms
from mlx_attn.convert.table import find_conversion
from mlx_attn.errors import RunError
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT, TransformerBlock, model_cost
from mlx_attn.runs import Run, check_free, create_run
from mlx_attn.text.corpus import Corpus, Split
from mlx_attn.training.batches import read_windows
from mlx_attn.training.config import settings_from, variant_name
from mlx_attn.training.evaluation import Evaluation, Evaluator
from mlx_attn.training.trainer import Trainer

LOGITS_AT_ONCE = 2**24
"""Of a batch: 134 MB in float64."""


def sample_windows(split: Split, context_length: int, n_tokens: int) -> Integer[mx.array, "B T"]:
    """Windows spread evenly over a text, of about so many tokens together."""
    available = len(split.tokens) // context_length
    count = max(1, min(available, n_tokens // context_length))
    starts = mx.linspace(0, len(split.tokens) - context_length, count).astype(mx.int32)
    return mx.array(read_windows(split.tokens, np.array(starts, np.int64), context_length))


def batches(
    windows: Integer[mx.array, "B T"], vocab_size: int
) -> Iterator[Integer[mx.array, "batch T"]]:
    """The windows, as many at a time as memory has room for their logits."""
    size = max(1, LOGITS_AT_ONCE // (windows.shape[1] * vocab_size))
    for start in range(0, len(windows), size):
        yield windows[start : start + size]


LOGIT_TOKENS = 4096
"""Tokens of the validation text whose logits are compared, at most."""

EXACT_WORK = 20e9
"""Multiply-adds of one model in float64, about: all these tokens in tiny models, 160 in GPT-2."""

Tokens = Integer[mx.array, "B T"]


@dataclass(frozen=True, slots=True)
class LogitDifferences:
    """The logits of a model before and after a conversion: largest absolute values.

    Attributes:
        logit_difference: Of the difference between the two models as they are.
        largest_logit: Of the model's logits before.
        exact_difference: Of the difference between the two, both computed in float64: what the
            conversion and the storing of its weights changed.
        rounding: Of the difference between the model before as it is and computed in float64.
        rounding_after: The same of the model after.
    """

    logit_difference: float
    largest_logit: float
    exact_difference: float
    rounding: float
    rounding_after: float


def compare_logits(before: GPT, after: GPT, split: Split) -> LogitDifferences:
    """Compare two models on windows of a text; in float64 on fewer where they are large."""
    T, V = before.config.context_length, before.config.vocab_size
    n_exact = _exact_tokens(before, after)
    windows = batches(sample_windows(split, T, LOGIT_TOKENS), V)
    exact_windows = batches(sample_windows(split, min(T, n_exact), n_exact), V)
    differences = np.max([_differences(before, after, tokens) for tokens in windows], axis=0)
    roundings = np.max([_roundings(before, after, tokens) for tokens in exact_windows], axis=0)
    return LogitDifferences(*differences.tolist(), *roundings.tolist())


def logit_difference(before: GPT, after: GPT, tokens: Tokens) -> float:
    """The largest difference between the logits of two models for the same tokens."""
    return _differences(before, after, tokens)[0]


def _exact_tokens(before: GPT, after: GPT) -> int:
    params = max(model_cost(model.config).parameters for model in (before, after))
    return min(LOGIT_TOKENS, max(1, int(EXACT_WORK / params)))


def _differences(before: GPT, after: GPT, tokens: Tokens) -> tuple[float, float]:
    """The difference as the models are, and the largest logit."""
    logits = _logits(before, tokens)
    return _largest(logits - _logits(after, tokens)), _largest(logits)


def _roundings(before: GPT, after: GPT, tokens: Tokens) -> tuple[float, float, float]:
    """The difference in float64, and what each model differs from itself in float64."""
    old, new = exact_logits(before, tokens), exact_logits(after, tokens)
    return (
        _largest(old - new),
        _largest(old - _logits(before, tokens)),
        _largest(new - _logits(after, tokens)),
    )


def _logits(model: GPT, tokens: Tokens) -> Float[np.ndarray, "B T V"]:
    return to_numpy(model(tokens))


def _largest(array: Float[np.ndarray, "B T V"]) -> float:
    return float(np.abs(array).max())


def exact_logits(model: GPT, tokens: Integer[mx.array, "B T"]) -> Float64[np.ndarray, "B T V"]:
    """The logits of a model's weights as they are, computed in float64 and without dropout.

    The angles of RoPE and the slopes of ALiBi stay those of float32: they belong to the model.
    """
    with mx.stream(mx.cpu):
        return np.array(_in_float64(model)(tokens))


def _in_float64(model: GPT) -> GPT:
    exact = GPT(model.config)
    exact.update(model.parameters())
    exact.final_norm = _PlainNorm(model.final_norm)
    exact.trf_blocks = []
    exact.set_dtype(mx.float64)
    exact.eval()
    blocks: Any = [_ExactBlock(block, model.config) for block in model.trf_blocks]
    exact.trf_blocks = blocks
    return exact


@dataclass(frozen=True, slots=True)
class _ExactBlock:
    """A block whose weights are in float64 only while it computes: large models have many."""

    block: TransformerBlock
    config: GPTConfig

    def __call__(
        self, x: Float[mx.array, "B T C"], cache: AttentionCache | None = None
    ) -> Float[mx.array, "B T C"]:
        exact = TransformerBlock(self.config)
        exact.update(self.block.parameters())
        exact.norm1, exact.norm2 = _PlainNorm(self.block.norm1), _PlainNorm(self.block.norm2)
        exact.att.fused = False
        if self.config.qk_norm:
            exact.att.normalise = _unit_rms
        exact.set_dtype(mx.float64)
        exact.eval()
        y = exact(x, cache)
        mx.eval(y)
        return y


class _PlainNorm(nn.Module):
    """LayerNorm or RMSNorm in plain operations, with the weights of an existing one."""

    def __init__(self, norm: Any):
        super().__init__()
        self.weight, self.eps = norm["weight"], norm.eps
        self.bias = norm["bias"] if "bias" in norm else mx.zeros_like(self.weight)
        self.centred = isinstance(norm, nn.LayerNorm)

    def __call__(self, x: Float[mx.array, "*batch C"]) -> Float[mx.array, "*batch C"]:
        x = x - x.mean(-1, keepdims=True) if self.centred else x
        return _unit_rms(x, self.eps) * self.weight + self.bias


def _unit_rms(x: Float[mx.array, "*batch C"], eps: float = 1e-6) -> Float[mx.array, "*batch C"]:
    return x / mx.sqrt(mx.square(x).mean(-1, keepdims=True) + eps)


@dataclass(frozen=True, slots=True)
class Figures:
    """A model in numbers.

    Attributes:
        variant: The name of its attention's three choices.
        val_loss: Nats per token over the whole validation text.
        bits_per_byte: The same per byte of text; None for a task.
        above_floor: Bits per byte above the text's exact entropy, where that is known; for a task,
            nats per scored token above its floor.
        accuracy: Share of a task's answers that are right; None for a text.
        params: Trained numbers.
        cache_bytes_per_token: Bytes remembered for each token when decoding.
    """

    variant: str
    val_loss: float
    bits_per_byte: float | None
    above_floor: float | None
    accuracy: float | None
    params: int
    cache_bytes_per_token: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """A model before and after a conversion.

    Attributes:
        before: The model that was converted.
        after: What it became.
        logits: How far apart the two are in what they compute, and how much of it is rounding.
        score_error: |S - S'| / |S| in the Frobenius norm, of the worst layer; its bias is in it.
        output_error: The same of VO.
    """

    before: Figures
    after: Figures
    logits: LogitDifferences
    score_error: float
    output_error: float

    @property
    def loss_change(self) -> float:
        """Validation loss after less before, in nats per token."""
        return self.after.val_loss - self.before.val_loss

    @property
    def weights_removed(self) -> int:
        """How many trained numbers fewer there are; negative where there are more."""
        return self.before.params - self.after.params

    def record(self) -> dict[str, Any]:
        """All of it as one JSON object."""
        derived = {"loss_change": self.loss_change, "weights_removed": self.weights_removed}
        flat = asdict(self)
        logits = flat.pop("logits")
        return flat | logits | derived


def figures(model: GPT, evaluator: Evaluator) -> Figures:
    """Evaluate a model and count it."""
    evaluation, cost = evaluator(model), model_cost(model.config)
    return Figures(
        variant=variant_name(model.config.as_dict()),
        val_loss=evaluation.val_loss,
        bits_per_byte=evaluation.bits_per_byte,
        above_floor=evaluation.above_floor,
        accuracy=evaluation.accuracy,
        params=cost.parameters,
        cache_bytes_per_token=cost.cache_floats * model.tok_emb.weight.itemsize,
    )


def compare(before: GPT, after: GPT, evaluator: Evaluator, folded: GPT | None = None) -> Outcome:
    """Measure a conversion on the validation text.

    Args:
        before: The model that was converted.
        after: What it became.
        evaluator: For both.
        folded: The same model as `before` with its norms folded, where `after` has them folded.
    """
    score_error, output_error = weight_errors(folded or before, after)
    return Outcome(
        before=figures(before, evaluator),
        after=figures(after, evaluator),
        logits=compare_logits(before, after, evaluator.split),
        score_error=score_error,
        output_error=output_error,
    )


def weight_errors(before: GPT, after: GPT) -> tuple[float, float]:
    """The relative errors of S_h and of VO_h, of the worst layer each."""
    pairs = [
        (old.att, new.att) for old, new in zip(before.trf_blocks, after.trf_blocks, strict=True)
    ]
    scores = [[qk_circuit(att).products_with_bias for att in pair] for pair in pairs]
    outputs = [[ov_circuit(att).products for att in pair] for pair in pairs]
    return max(relative_error(*pair) for pair in scores), max(
        relative_error(*pair) for pair in outputs
    )


@dataclass(frozen=True, slots=True)
class RankPoint:
    """A model cut to one rank.

    Attributes:
        rank: What the conversion's row says it means.
        figures: The model's loss, size and cache.
        error: Relative error of what was cut, S or VO, of the worst layer.
    """

    rank: int
    figures: Figures
    error: float


@dataclass(frozen=True, slots=True)
class RankCurve:
    """A model and what it is at several ranks.

    Attributes:
        to: The conversion that cuts it.
        original: The model itself.
        points: In the order measured.
    """

    to: str
    original: Figures
    points: tuple[RankPoint, ...]

    def record(self) -> dict[str, Any]:
        """All of it as one JSON object."""
        return asdict(self)


def rank_points(
    model: GPT,
    to: str,
    ranks: Sequence[int],
    evaluator: Evaluator,
    tokens: Integer[mx.array, "B T"] | None = None,
) -> Iterator[RankPoint]:
    """The model at each rank, one at a time: each is converted anew from the model itself.

    Args:
        model: A trained model.
        to: A conversion that takes a rank.
        ranks: In the order wanted.
        evaluator: For all of them.
        tokens: See `convert`.

    Raises:
        ConfigError: The conversion does not apply, or a rank is out of reach.
    """
    conversion = find_conversion(to)
    for rank in ranks:
        same = conversion.changed(model.config, rank) == model.config
        cut = model if same else convert(model, to, rank=rank, tokens=tokens)
        yield RankPoint(rank, figures(cut, evaluator), max(weight_errors(model, cut)))


FITTED_TOKENS = 8192
"""Tokens of the training text that a conversion is fitted to, where one is, at most."""


def convert_run(
    run: Run,
    to: str,
    out: Path,
    corpus: Corpus,
    *,
    rank: int = 0,
    fold_norm: bool = False,
    overwrite: bool = False,
) -> tuple[Run, Outcome]:
    """Convert a run's best weights and write them as a new run.

    The new run keeps the settings of training and text. Its checkpoint is at step 0 with a fresh
    optimizer, so that `train --resume` trains the converted model by the same recipe.

    Args:
        run: What to convert.
        to: A name in `CONVERSIONS`.
        out: The new directory.
        corpus: The text that the run was trained on.
        rank: See `convert`.
        fold_norm: See `convert`.
        overwrite: Whether an existing run directory may be replaced.

    Raises:
        ConfigError: The conversion does not apply to this model.
        RunError: The text is another one, or files cannot be read or written.
    """
    check_corpus(run, corpus)
    check_free(out, overwrite)
    model = run.load_model()
    T = model.config.context_length
    tokens = sample_windows(corpus.train, T, FITTED_TOKENS)
    converted = convert(model, to, rank=rank, fold_norm=fold_norm, tokens=tokens)
    folded = fold_norms(model) if fold_norm else None
    outcome = compare(model, converted, Evaluator(corpus.val, T), folded)
    facts = {"from": str(run.path), "to": to, "rank": rank, "fold_norm": fold_norm}
    config = converted.config.as_dict()
    changed = {"model": config, "variant": variant_name(config), "converted": facts}
    new = create_run(out, {**run.settings, **changed}, overwrite)
    run.load_tokenizer().save(new.path)
    new.save_model(converted)
    _save_start(new, converted, corpus, outcome)
    return new, outcome


def measure_ranks(
    run: Run,
    to: str,
    ranks: Sequence[int],
    corpus: Corpus,
    done: Callable[[int, int], None] = lambda rank, count: None,
) -> RankCurve:
    """The loss of a run's best weights, cut to each of several ranks.

    Args:
        run: What to measure; it is left as it is.
        to: A conversion that takes a rank.
        ranks: In the order wanted.
        corpus: The text that the run was trained on.
        done: Called after each rank, with the rank and how many are done.

    Raises:
        ConfigError: The conversion does not apply, or a rank is out of reach.
        RunError: The text is another one, or files cannot be read.
    """
    check_corpus(run, corpus)
    conversion, model = find_conversion(to), run.load_model()
    for rank in ranks:
        conversion.changed(model.config, rank)
    evaluator = Evaluator(corpus.val, model.config.context_length)
    original, points = figures(model, evaluator), []
    for point in rank_points(model, conversion.name, ranks, evaluator):
        points.append(point)
        done(point.rank, len(points))
    return RankCurve(conversion.name, original, tuple(points))


def check_corpus(run: Run, corpus: Corpus) -> None:
    """Refuse a text that the run was not trained on.

    Raises:
        RunError: It is another one.
    """
    if run.settings.get("digest") not in (None, corpus.digest):
        raise RunError(f"{run.path} was trained on another text than {corpus.name} holds now")


def _save_start(run: Run, model: GPT, corpus: Corpus, outcome: Outcome) -> None:
    """Write a checkpoint at step 0, from which training goes on."""
    trainer = Trainer(settings_from(run.settings, {}), corpus)
    trainer.model.load_weights(list(named_arrays(model).items()))
    now = outcome.after
    trainer.progress.best = Evaluation(
        val_loss=now.val_loss,
        bits_per_byte=now.bits_per_byte,
        above_floor=now.above_floor,
        accuracy=now.accuracy,
    )
    trainer.run = run
    trainer.save()
