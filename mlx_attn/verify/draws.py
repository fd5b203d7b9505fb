"""Check random numbers and the sampler against NumPy.

Filters and penalties are compared number by number, and draws by the frequency of each token.
"""

from collections.abc import Callable, Iterator
from functools import partial

import mlx.core as mx
import numpy as np

from mlx_attn.attention.layer import UniformInit
from mlx_attn.sampling import samplers
from mlx_attn.sampling.config import SamplerConfig
from mlx_attn.verify.reference import Array, Numbers
from mlx_attn.verify.tolerance import FLOAT32, Comparison, Rounding, as_mlx, as_numpy, compared

Comparisons = Iterator[Comparison]
DRAWS = 2_000
FREQUENCY = 5 / (2 * DRAWS**0.5)
"""Tolerance of a frequency: five standard deviations, which are at most 1 / (2 sqrt(draws))."""
_SIDE = 1_000
"""Rows and columns of the matrices that initialisation draws."""
SPREAD = 0.015
"""Tolerance of moments of a million numbers: more than four standard deviations of the fourth."""
CUT = -1e3
"""Replaces minus infinity, so that filtered tokens have a finite difference."""


def random_numbers(rounding: Rounding) -> Comparisons:
    """Compare the mean, spread and fourth moment of the numbers that initialise a layer."""
    mx.random.seed(7)
    start = UniformInit()
    uniform, normal = start("", _SIDE, _SIDE) * _SIDE**0.5, start.normal("", (_SIDE, _SIDE))
    for name, drawn, fourth in (("uniform", uniform * 3**0.5, 9 / 5), ("normal", normal, 3.0)):
        x = as_numpy(drawn)
        moments = np.array([x.mean(), (x**2).mean(), (x**4).mean() / fourth])
        yield compared(name, mx.array(moments), np.array([0.0, 1.0, 1.0]), SPREAD)


def _left(logits: Array, chosen: Array) -> Array:
    return np.where(chosen, logits, CUT)


def _softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def _top_k(logits: Array, k: int) -> Array:
    return _left(logits, np.argsort(np.argsort(-logits)) < k)


def _top_p(logits: Array, p: float) -> Array:
    chosen = np.zeros(logits.shape, bool)
    for row, probabilities in zip(chosen, _softmax(logits), strict=True):
        total = 0.0
        for token in np.argsort(-probabilities):
            if total < p:
                row[token] = True
            total += probabilities[token]
    return _left(logits, chosen)


def _min_p(logits: Array, fraction: float) -> Array:
    probabilities = _softmax(logits)
    return _left(logits, probabilities >= fraction * probabilities.max(axis=-1, keepdims=True))


def _penalised(logits: Array, recent: Array, penalty: float) -> Array:
    y = logits.copy()
    for row, tokens in zip(y, recent, strict=True):
        for token in set(tokens.tolist()):
            row[token] *= 1 / penalty if row[token] > 0 else penalty
    return y


def sampling(rounding: Rounding) -> Comparisons:
    """Compare top-k, top-p, min-p and the penalty token by token, and the frequency of draws."""
    numbers = Numbers(15)
    for size in (12, 1024):
        logits, recent = numbers(3, size) * 6, numbers.tokens(size, 3, 5)
        filters: dict[str, tuple[Callable[..., mx.array], Array]] = {
            "top-k 5": (partial(samplers.top_k, k=5), _top_k(logits, 5)),
            "top-p 0.8": (partial(samplers.top_p, p=0.8), _top_p(logits, 0.8)),
            "min-p 0.1": (partial(samplers.min_p, fraction=0.1), _min_p(logits, 0.1)),
            "penalty 1.3": (
                partial(samplers.penalise, recent=as_mlx(recent), penalty=1.3),
                _penalised(logits, recent, 1.3),
            ),
        }
        for name, (function, expected) in filters.items():
            y = mx.maximum(function(as_mlx(logits)), CUT)
            yield compared(f"{name} of {size} tokens", y, expected, FLOAT32.tolerance)
    yield from _frequencies(numbers(12) * 3)


def _frequencies(logits: Array) -> Comparisons:
    """Compare the first tokens of texts with consecutive seeds with their probabilities."""
    settings = {
        "temperature 1": ({"temp": 1.0}, logits),
        "temperature 0.5": ({"temp": 0.5}, logits / 0.5),
        "top-k 3, temperature 2": ({"temp": 2.0, "top_k": 3}, _top_k(logits[None], 3)[0] / 2),
    }
    for name, (options, expected) in settings.items():
        sampler = samplers.Sampler(SamplerConfig(seed=7, **options), DRAWS)
        rows = mx.broadcast_to(as_mlx(logits), (DRAWS, len(logits)))
        drawn = np.array(sampler(rows, mx.zeros((DRAWS, 0), mx.uint32))).ravel()
        counts = np.bincount(drawn % len(logits), minlength=len(logits)) / DRAWS
        apart = float(np.abs(counts - _softmax(expected)).max())
        yield Comparison(f"{DRAWS:,} draws, {name}", apart, FREQUENCY)
