"""The settings of a sampler, checked once; importing them does not import MLX.

Fields with a help text become options of `mlx-attn sample` and settings of the REPL.
"""

from dataclasses import dataclass

from mlx_attn.keys import check_settings, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerConfig:
    """Settings of a sampler; each default but `temp` leaves the model's distribution as it is.

    `top_k`, `top_p` and `min_p` filter tokens by their probabilities at temperature 1, as mlx-lm
    does; a token must pass all of them. The penalty is for the last `samplers.RECENT` tokens
    of prompt and answer.
    """

    temp: float = setting(0.8, "temperature; 0 takes the likeliest token", high=1e6)
    top_k: int = setting(0, "only the k likeliest tokens; 0 is all")
    top_p: float = setting(
        1.0, "only the likeliest, of this probability together; 1 is all", low=1e-6, high=1
    )
    min_p: float = setting(0.0, "only those this fraction as likely as the likeliest", high=1)
    repetition_penalty: float = setting(1.0, "for recent tokens; 1 is none", low=1e-6, high=1e6)
    seed: int | None = setting(None, "the same seed, the same text; none is random", high=2**64 - 1)

    def __post_init__(self):
        check_settings(self)
