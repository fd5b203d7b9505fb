"""Convert runs and measure the difference in loss, logits and weights; measure loss against rank.

Logits are compared in the models' own precision and in float64, to separate rounding from error.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from jaxtyping import Float64, Integer

from mlx_attn.arrays import count_parameters
from mlx_attn.convert.circuits import ov_circuit, qk_circuit, to_numpy
from mlx_attn.convert.conversions import changes_output, changes_scores, find_conversion
from mlx_attn.convert.model import convert, converted_config, fold_norms
from mlx_attn.cost import model_cost
from mlx_attn.errors import ConfigError
from mlx_attn.machine.device import float64
from mlx_attn.machine.facts import exact_products
from mlx_attn.model.gpt import GPT
from mlx_attn.plugins import used_plugins
from mlx_attn.run_directory import Run, check_free, new_run
from mlx_attn.text.corpus import Corpus, Split
from mlx_attn.training.config import settings_from, variant_name
from mlx_attn.training.evaluation import Evaluation, Evaluator, evaluation_record
from mlx_attn.training.trainer import Trainer

_FITTED_TOKENS = 8192  # most tokens of the training text that a fitted conversion reads
_LOGIT_TOKENS = 4096  # most tokens of the validation text whose logits are compared

EXACT, _FAR = 1e-5, 100
"""A conversion counts as exact if the relative errors of S and VO are below `EXACT`; then its
logits may differ by at most `_FAR` times the rounding of either model."""

_FLOAT64_WORK = 20e9
"""Most multiply-adds of one model in float64: 4096 tokens in tiny models, 160 in GPT-2."""

_VALIDATION_WORK = 2e12
"""Most multiply-adds of one validation: all text in small models, 16,000 tokens in GPT-2."""

_LOGITS_AT_ONCE = 2**24  # most logits in memory for one batch: 134 MB in float64

_WAY_OUT = "put back what it was trained on"

_Tokens = Integer[mx.array, "B T"]


@dataclass(frozen=True, slots=True)
class _LogitDifferences:
    """Largest absolute differences between the logits before and after a conversion."""

    logit_difference: float  # between both models in their own precision
    largest_logit: float  # of the model before
    exact_difference: float  # between both in float64: the error of the stored weights
    rounding: float  # of the model before: its own precision against float64
    rounding_after: float  # of the model after, likewise


def compare_logits(before: GPT, after: GPT, split: Split) -> _LogitDifferences:
    """Compare two models on windows of a text; in float64 on fewer tokens if they are large."""
    T, V = before.config.context_length, before.config.vocab_size
    parameters = max(map(count_parameters, (before, after)))
    n_exact = min(_LOGIT_TOKENS, max(1, int(_FLOAT64_WORK / parameters)))
    plain, exact = [], []
    for tokens in _batches(_spread_windows(split, T, _LOGIT_TOKENS), V):
        logits = to_numpy(before(tokens))
        plain.append([np.abs(array).max() for array in (logits - to_numpy(after(tokens)), logits)])
    for tokens in _batches(_spread_windows(split, min(T, n_exact), n_exact), V):
        old, new = float64_logits(before, tokens), float64_logits(after, tokens)
        rounding, rounding_after = old - to_numpy(before(tokens)), new - to_numpy(after(tokens))
        exact.append([np.abs(array).max() for array in (old - new, rounding, rounding_after)])
    return _LogitDifferences(*np.max(plain, axis=0).tolist(), *np.max(exact, axis=0).tolist())


def float64_logits(model: GPT, tokens: _Tokens) -> Float64[np.ndarray, "B T V"]:
    """Return the logits of a model computed in float64, without dropout.

    The angles of RoPE and the slopes of ALiBi stay rounded to float32: they belong to the model.
    """
    with float64():
        exact = copy.deepcopy(model)
        exact.set_dtype(mx.float64)
        exact.eval()
        return np.array(exact(tokens))


def _spread_windows(split: Split, context_length: int, n_tokens: int) -> _Tokens:
    """Return windows evenly spread over a text: at most `n_tokens` in all, at least one window."""
    count = max(1, n_tokens // context_length)
    return mx.array(Evaluator(split, context_length).texts(count))


def validation_part(corpus: Corpus, parameters: int) -> Split:
    """Return the validation text, or its beginning if the model is so large that all takes hours.

    A beginning has neither a floor nor abilities.
    """
    split, stop = corpus.val, max(2, int(_VALIDATION_WORK / parameters))
    if stop >= len(split.tokens):
        return split
    tokens, starts, scored = split.tokens[:stop], split.document_starts, split.scored
    return Split(
        tokens,
        n_bytes=sum(len(corpus.tokenizer.token_bytes(token)) for token in tokens.tolist()),
        document_starts=None if starts is None else starts[starts < stop],
        scored=None if scored is None else scored[:stop],
    )


def _batches(windows: _Tokens, vocab_size: int) -> Iterator[_Tokens]:
    size = max(1, _LOGITS_AT_ONCE // (windows.shape[1] * vocab_size))
    return (windows[start : start + size] for start in range(0, len(windows), size))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMetrics(Evaluation):
    """A model in numbers, evaluated on `validation_part` of the text."""

    variant: str
    tokens: int  # number scored by the evaluation
    params: int
    cache_bytes_per_token: int

    def record(self) -> dict[str, Any]:
        """Return the numbers as one JSON object."""
        return {key: value for key, value in asdict(self).items() if key != "abilities"}


def measure_model(model: GPT, evaluator: Evaluator, named: str = "") -> ModelMetrics:
    """Evaluate a model of a variant, if it has this name, and count its parameters and cache."""
    cost = model_cost(model.config)
    return ModelMetrics(
        **asdict(evaluator(model)),
        variant=variant_name(model.config.as_dict(), named),
        tokens=evaluator.split.n_scored,
        params=cost.parameters,
        cache_bytes_per_token=cost.cache_floats * model.tok_emb.weight.itemsize,
    )


@dataclass(frozen=True, slots=True)
class Outcome:
    """A model before and after a conversion."""

    before: ModelMetrics  # the model that was converted
    after: ModelMetrics  # the model in its new form
    logits: _LogitDifferences  # the differences between their logits, and rounding
    # |S - S'| / |S| in the Frobenius norm, in the worst layer, with the bias in S
    score_error: float
    output_error: float  # the same for VO

    @property
    def loss_change(self) -> float:
        """Validation loss after minus before, in nats per token."""
        return self.after.val_loss - self.before.val_loss

    @property
    def is_same_function(self) -> bool:
        """Return whether the matrices of every head are kept, up to rounding."""
        return max(self.score_error, self.output_error) < EXACT

    def record(self) -> dict[str, Any]:
        """Return all of it as one JSON object."""
        return {
            "before": self.before.record(),
            "after": self.after.record(),
            "score_error": self.score_error,
            "output_error": self.output_error,
            **asdict(self.logits),
            "loss_change": self.loss_change,
            "weights_removed": self.before.params - self.after.params,
        }


def weight_errors(before: GPT, after: GPT) -> tuple[float, float]:
    """Return the relative errors of S_h and VO_h, each in the worst layer; 0 if unchanged."""
    score_errors, output_errors = [0.0], [0.0]
    for old, new in zip(before.trf_blocks, after.trf_blocks, strict=True):
        layers, configs = (old.att, new.att), (old.att.config, new.att.config)
        if changes_scores(*configs):
            products = [qk_circuit(att).products_with_bias for att in layers]
            score_errors.append(_relative_error(*products))
        if changes_output(*configs):
            output_errors.append(_relative_error(*(ov_circuit(att).products for att in layers)))
    return float(np.max(score_errors)), float(np.max(output_errors))


def _relative_error(exact: np.ndarray, found: np.ndarray) -> float:
    """Return the Frobenius norm of the difference, relative to the exact one; 0 if both are 0."""
    size = np.linalg.norm(exact)
    return float(np.linalg.norm(exact - found) / size) if size else 0.0


@exact_products()
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
    """Convert a run's best weights, by the arguments of `convert`, and write them as a new run.

    Raises:
        ConfigError: The conversion does not apply to this model, or would replace its run.
        RunError: `corpus` is not the run's text, or files cannot be read or written.
    """
    run.check_corpus(corpus, _WAY_OUT)
    if out.exists() and out.samefile(run.path):  # the disk of a Mac may ignore case
        raise ConfigError(f"{out} is the run that is converted: name another directory with --out")
    check_free(out, overwrite)
    before = run.load_model()
    fitted = max(_FITTED_TOKENS, 4 * before.config.emb_dim)
    tokens = _spread_windows(corpus.train, before.config.context_length, fitted)
    after = convert(before, to, rank=rank, fold_norm=fold_norm, tokens=tokens)
    outcome = _measure_outcome(before, after, corpus, fold_norm, run.settings.get("variant", ""))
    _check_exact(to, outcome)
    facts = {"from": str(run.path), "to": to, "rank": rank, "fold_norm": fold_norm}
    measured, best = evaluation_record(outcome.after), None
    facts["params"] = outcome.after.params
    if outcome.after.tokens == corpus.val.n_scored:  # a loss on a part cannot be compared
        facts, best = facts | measured, Evaluation(**measured)
    settings = _settings_of(run, after, outcome.after.variant) | {"converted": facts}
    # The new run is at step 0, from which `train --resume` trains on.
    with new_run(out, settings, overwrite, run.load_tokenizer()) as new:
        trainer = Trainer(settings_from(new.settings, {}), corpus)
        trainer.start_from(after)
        trainer.progress.best, trainer.run = best, new
        trainer.save()
    return new, outcome


def _measure_outcome(
    before: GPT, after: GPT, corpus: Corpus, fold_norm: bool, named: str
) -> Outcome:
    split = validation_part(corpus, max(map(count_parameters, (before, after))))
    evaluator = Evaluator(split, before.config.context_length)
    # Folding changes S and VO but not the function, so compare with the folded model.
    errors = weight_errors(fold_norms(before) if fold_norm else before, after)
    metrics = measure_model(before, evaluator, named), measure_model(after, evaluator)
    return Outcome(*metrics, compare_logits(before, after, split), *errors)


def _settings_of(run: Run, model: GPT, variant: str) -> dict[str, Any]:
    """Return a run's settings for a converted model, with the plugins in use, as recorded."""
    config = model.config.as_dict()
    used = {name for record in used_plugins(config) for name in record["names"]}
    kept = [record for record in run.settings.get("plugins", ()) if used & {*record["names"]}]
    return {**run.settings, "model": config, "variant": variant, "plugins": kept}


def _check_exact(to: str, outcome: Outcome) -> None:
    """Refuse a conversion with equal matrices and logits that differ by more than rounding."""
    logits, error = outcome.logits, max(outcome.score_error, outcome.output_error)
    rounding = max(logits.rounding, logits.rounding_after, EXACT * logits.largest_logit)
    if outcome.is_same_function and not logits.exact_difference <= _FAR * rounding:
        raise ConfigError(
            f"--to {to} gives the matrices of every head to {error:.1e}, and yet logits that "
            f"differ by {logits.exact_difference:.1e} in float64, where rounding is "
            f"{rounding:.1e}: a map of this model is not what its matrices say, so nothing is "
            "written; if it is a plugin's, declare it with affine=False"
        )


@dataclass(frozen=True, slots=True)
class RankCurve:
    """A model as it is, and cut to several ranks by the conversion `to`."""

    to: str
    original: ModelMetrics
    # By rank, with the relative error of S or VO in the worst layer.
    points: Mapping[int, tuple[ModelMetrics, float]]

    def record(self) -> dict[str, Any]:
        """Return all of it as one JSON object."""
        points = [
            {"rank": rank, "figures": metrics.record(), "error": error}
            for rank, (metrics, error) in self.points.items()
        ]
        return {"to": self.to, "original": self.original.record(), "points": points}


@exact_products()
def measure_ranks(
    run: Run,
    to: str,
    ranks: Sequence[int],
    corpus: Corpus,
    done: Callable[[int, int], None] = lambda rank, count: None,
) -> RankCurve:
    """Measure the loss of a run's best weights, cut to each of several ranks.

    The run is left unchanged. `done` is called after each rank, with the rank and the number done.

    Raises:
        ConfigError: The conversion does not apply, or a rank is out of reach.
        RunError: `corpus` is not the run's text, or files cannot be read.
    """
    run.check_corpus(corpus, _WAY_OUT)
    conversion, model = find_conversion(to), run.load_model()
    targets = [converted_config(conversion, model.config, rank) for rank in ranks]
    split = validation_part(corpus, count_parameters(model))
    evaluator = Evaluator(split, model.config.context_length)
    original = measure_model(model, evaluator)
    points: dict[int, tuple[ModelMetrics, float]] = {}
    for rank, target in zip(ranks, targets, strict=True):
        cut = model if target == model.config else convert(model, to, rank=rank)
        points[rank] = measure_model(cut, evaluator), max(weight_errors(model, cut))
        done(rank, len(points))
    return RankCurve(conversion.name, original, points)
