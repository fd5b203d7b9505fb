"""Compare a model that was read back with the one that was written."""

from dataclasses import dataclass
from itertools import islice

import mlx.core as mx
import numpy as np

from mlx_attn.errors import RunError
from mlx_attn.model.gpt import GPT
from mlx_attn.sampling.config import SamplerConfig
from mlx_attn.sampling.decoding import DecodingState, TokenStep, decode
from mlx_attn.sampling.samplers import Sampler

_WINDOW = 64
"""Tokens whose logits are compared, at most."""

_GREEDY = 100
"""Greedy tokens that are compared, at most."""

_FAR = 0.01
"""Largest difference, as a share of the largest logit.

Rounding stays below it: 1e-5 in float32 (measured); TF32 rounds each factor of a product by up to
5e-4. A wrong formula exceeds it by far.
"""


@dataclass(frozen=True, slots=True)
class Parity:
    """How far two models agree."""

    logit_difference: float  # the largest absolute one over the window
    largest_logit: float  # the largest absolute one there
    tokens: int  # length of the window
    greedy_equal: int  # equal greedy tokens, generated after a quarter of the window
    greedy: int  # greedy tokens

    def check(self, place: str) -> None:
        """Refuse a model that computes something else.

        Raises:
            RunError: A logit is not finite, or differs by more than `_FAR` of the largest.
        """
        if not self.logit_difference <= _FAR * max(1, self.largest_logit):
            raise RunError(
                f"{place} is not written, because it would not be this model: {self.line}; at most "
                f"{_FAR:g} of the largest logit is rounding. 'mlx-attn verify' shows whether this "
                "machine computes right"
            )

    @property
    def line(self) -> str:
        """The comparison in one line, which `export` prints last."""
        return (
            f"read back: largest logit difference {self.logit_difference:.1e} over "
            f"{self.tokens} tokens, of logits up to {self.largest_logit:.1f}; {self.greedy_equal} "
            f"of {self.greedy} greedy tokens equal"
        )


def compare(model: GPT, read: GPT) -> Parity:
    """Compare two models: logits of random tokens, and greedy tokens after the first of these."""
    config, rng = model.config, np.random.default_rng(0)
    size = min(_WINDOW, config.context_length)
    window: list[int] = rng.integers(config.vocab_size, size=size).tolist()
    prompt = window[: max(1, len(window) // 4)]
    count = min(_GREEDY, config.context_length - len(prompt))
    tokens = mx.array(window)[None]
    logits, others = (np.array(each(tokens)[0].astype(mx.float32)) for each in (model, read))
    greedy = [_greedy_tokens(each, prompt, count) for each in (model, read)]
    return Parity(
        logit_difference=float(np.abs(logits - others).max()),
        largest_logit=float(np.abs(logits).max()),
        tokens=len(window),
        greedy_equal=sum(a == b for a, b in zip(*greedy, strict=True)),
        greedy=count,
    )


def _greedy_tokens(model: GPT, prompt: list[int], count: int) -> list[int]:
    """Return greedy tokens, decoded with the cache."""
    greedy = Sampler(SamplerConfig(temp=0.0))
    tokens = decode(DecodingState(TokenStep(model)), prompt, greedy)
    return [token for (token,) in islice(tokens, count)]
