"""A trained sharpness of each head: the scale of query-key normalization (arXiv:2010.04245)."""

import mlx.core as mx

from mlx_attn.attention.catalog import choice, row
from mlx_attn.attention.layer import MapWeights, Scores


@choice(
    "logits",
    "temperature",
    "s_h = e^t_h score_h",
    input_weights=(),
    score_factor=lambda layer: mx.exp(layer["log_temperature"]),
    shift_invariant=True,
    source="the trained scale of query-key normalization, arXiv:2010.04245, one per head",
    weights={"log_temperature": lambda config: mx.zeros((config.n_maps,))},  # [H]: e^0 = 1
)
def temperature(layer: MapWeights, s: Scores) -> Scores:
    """Multiply each head's scores by a trained sharpness."""
    # The trained number is a logarithm, so the factor stays positive: [H, 1, 1] * [B, H, T_q, T_k].
    return mx.exp(layer["log_temperature"])[:, None, None] * s


row(
    "temperature",
    "a trained sharpness for each head",
    logits="temperature",
)
