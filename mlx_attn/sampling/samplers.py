"""How the next token is drawn: penalty, filters, temperature."""

import secrets

import mlx.core as mx
from jaxtyping import Float, Integer

from mlx_attn.sampling.config import SamplerConfig

Logits = Float[mx.array, "1 V"]
Tokens = Integer[mx.array, " N"]

_GREEDY_BELOW = 1e-6
"""Temperatures below this are 0: float32 could not tell them apart."""


def top_k(logits: Logits, k: int) -> Logits:
    """Keep the k likeliest tokens, or all where there are fewer."""
    likeliest = mx.topk(logits, min(k, logits.shape[-1]), axis=-1)
    return _keep(logits, logits >= mx.min(likeliest, axis=-1, keepdims=True))


def top_p(logits: Logits, p: float) -> Logits:
    """Keep the smallest set of likeliest tokens of probability p (nucleus, arXiv:1904.09751)."""
    probabilities = mx.softmax(logits, axis=-1)
    descending = -mx.sort(-probabilities, axis=-1)
    likelier = mx.cumsum(descending, axis=-1, inclusive=False)
    nucleus = mx.where(likelier < p, descending, mx.inf)
    return _keep(logits, probabilities >= mx.min(nucleus, axis=-1, keepdims=True))


def min_p(logits: Logits, fraction: float) -> Logits:
    """Keep tokens with probability >= fraction * the largest (arXiv:2407.01082)."""
    odds = mx.exp(logits - mx.max(logits, axis=-1, keepdims=True))
    return _keep(logits, odds >= fraction)


def _keep(logits: mx.array, kept: mx.array) -> mx.array:
    return mx.where(kept, logits, -mx.inf)


class RepetitionPenalty:
    """Logits of recent tokens: divided by the penalty if positive, multiplied by it if negative.

    Keskar and others, "CTRL", arXiv:1909.05858, section 4.1, divide always; but that would make a
    token with a negative logit likelier.
    """

    def __init__(self, penalty: float, window: int):
        self.penalty = penalty
        self.window = window
        self._recent = mx.zeros(0, mx.uint32)

    def __call__(self, logits: Logits, newest: Tokens) -> Logits:
        """The penalised logits, once `newest` are remembered as the latest tokens."""
        self._recent = mx.concatenate([self._recent, newest])[-self.window :]
        seen = logits[:, self._recent]
        worse = mx.where(seen > 0, seen / self.penalty, seen * self.penalty)
        return mx.put_along_axis(logits, self._recent[None], worse, axis=-1)


class _Categorical:
    """Draws from softmax(logits / temperature), with random numbers of its own."""

    def __init__(self, temp: float, seed: int):
        self.temp = temp
        self._key = mx.random.key(seed)

    def __call__(self, logits: Logits) -> Tokens:
        """A token of each row."""
        self._key, key = mx.random.split(self._key)
        # The likeliest becomes 0, so that a small temperature cannot overflow.
        shifted = logits - mx.max(logits, axis=-1, keepdims=True)
        return mx.random.categorical(shifted * (1 / self.temp), axis=-1, key=key)


class Sampler:
    """Penalty, filters and draw of one text; make a new one for the next text.

    Attributes:
        seed: The configuration's seed, or the one that was drawn.
    """

    def __init__(self, config: SamplerConfig):
        self.seed = secrets.randbits(32) if config.seed is None else config.seed
        penalty = RepetitionPenalty(config.repetition_penalty, config.repetition_window)
        self._penalty = penalty if config.repetition_penalty != 1 else None
        bounds = ((keep, getattr(config, key), off) for key, off, keep in _FILTERS)
        self._filters = [(keep, bound) for keep, bound, off in bounds if bound != off]
        is_greedy = config.temp < _GREEDY_BELOW
        self._draw = None if is_greedy else _Categorical(config.temp, self.seed)

    def __call__(self, logits: Logits, newest: Tokens) -> Integer[mx.array, "1"]:
        """Draw the next token; `newest` came since the last call, at first the prompt's."""
        if self._penalty:
            logits = self._penalty(logits, newest)
        for keep, bound in self._filters:
            logits = keep(logits, bound)
        return self._draw(logits) if self._draw else mx.argmax(logits, axis=-1)


_FILTERS = (("top_p", 1.0, top_p), ("min_p", 0.0, min_p), ("top_k", 0, top_k))
"""A filter's setting, the value that turns it off, and the filter."""
