"""The settings of a sampler, checked once; importing them does not import MLX.

Fields with a help text become options of `mlx-attn sample` and settings of the REPL.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mlx_attn.errors import ConfigError
from mlx_attn.keys import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerConfig:
    """Settings of a sampler; each default but `temp` leaves the model's distribution as it is.

    `top_k`, `top_p` and `min_p` filter tokens by their probabilities at temperature 1, as mlx-lm
    does; a token must pass all of them. The last `repetition_window` tokens, of prompt and answer,
    are penalised.
    """

    temp: float = setting(0.8, "temperature; 0 takes the likeliest token")
    top_k: int = setting(0, "only the k likeliest tokens; 0 is all")
    top_p: float = setting(1.0, "only the likeliest, of this probability together; 1 is all")
    min_p: float = setting(0.0, "only those this fraction as likely as the likeliest")
    repetition_penalty: float = setting(1.0, "for recent tokens; 1 is none")
    repetition_window: int = 20
    seed: int | None = setting(None, "the same seed, the same text; none is random")

    def __post_init__(self):
        for name, (fits, range_) in _RANGES.items():
            value = getattr(self, name)
            if not fits(value):
                raise ConfigError(f"{name}={value} must be {range_}")


_RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "temp": (lambda t: 0 <= t <= 1e6, "0 (the likeliest token) or more, at most 1e6"),
    "top_k": (lambda k: k >= 0, "0 (all tokens) or more"),
    "top_p": (lambda p: 1e-6 <= p <= 1, "above 0, from 1e-6 to 1 (all tokens)"),
    "min_p": (lambda p: 0 <= p <= 1, "from 0 (all tokens) to 1"),
    "repetition_penalty": (lambda r: 1e-6 <= r <= 1e6, "above 0, from 1e-6 to 1e6; 1 is none"),
    "repetition_window": (lambda n: 1 <= n <= 2**20, "from 1 to 2^20"),
    "seed": (lambda s: s is None or 0 <= s < 2**64, "from 0 to 2^64 - 1"),
}
