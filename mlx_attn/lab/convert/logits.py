"""How far apart the logits of two models are, and how much of that is rounding."""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from jaxtyping import Float, Integer

from mlx_attn.lab.convert.exact import exact_logits
from mlx_attn.lab.convert.layer import as_numpy
from mlx_attn.lab.convert.windows import batches, some_windows
from mlx_attn.model import GPT, model_cost
from mlx_attn.text.corpus import Split

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
    windows = batches(some_windows(split, T, LOGIT_TOKENS), V)
    exact_windows = batches(some_windows(split, min(T, n_exact), n_exact), V)
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
    return as_numpy(model(tokens))


def _largest(array: Float[np.ndarray, "B T V"]) -> float:
    return float(np.abs(array).max())
