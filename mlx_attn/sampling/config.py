"""How the next token is drawn: settings, checked once."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mlx_attn.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerConfig:
    """Settings of a sampler; each default but `temp` leaves the model's distribution as it is.

    `top_k`, `top_p` and `min_p` each say which tokens may be drawn, judged by the probabilities at
    temperature 1 (as mlx-lm does); a token must pass all of them.

    Attributes:
        temp: Temperature: logits are divided by it. 0 takes the likeliest token.
        top_k: Only the k likeliest tokens; 0 is all.
        top_p: Only the likeliest tokens that together have this probability; 1 is all.
        min_p: Only tokens at least this fraction as likely as the likeliest; 0 is all.
        repetition_penalty: Logits of recent tokens are made this many times worse; 1 is none.
        repetition_window: How many tokens are recent, those of the prompt included.
        seed: The same seed gives the same text; None draws one.

    Raises:
        ConfigError: A value is out of its range.
    """

    temp: float = 0.8
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    repetition_window: int = 20
    seed: int | None = None

    def __post_init__(self):
        for key, (fits, range_) in _RANGES.items():
            value = getattr(self, key)
            if not fits(value):
                raise ConfigError(f"{key}={value} must be {range_}")


_RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "temp": (lambda t: 0 <= t < math.inf, "0 (the likeliest token) or more"),
    "top_k": (lambda k: k >= 0, "0 (all tokens) or more"),
    "top_p": (lambda p: 0 < p <= 1, "above 0, and at most 1 (all tokens)"),
    "min_p": (lambda p: 0 <= p <= 1, "from 0 (all tokens) to 1"),
    "repetition_penalty": (lambda r: 0 < r < math.inf, "above 0, and 1 for no penalty"),
    "repetition_window": (lambda n: n >= 1, "at least 1"),
    "seed": (lambda s: s is None or 0 <= s < 2**64, "from 0 to 2^64 - 1"),
}
