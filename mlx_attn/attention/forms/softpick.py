"""Scores below 0 get no weight: softpick (arXiv:2504.20966)."""

import mlx.core as mx

from mlx_attn.attention.catalog import choice, row
from mlx_attn.attention.layer import MapWeights, Scores


@choice(
    "mixing",
    "softpick",
    "w_h = relu(e^s_h - 1) / sum |e^s_h - 1|",
    source="softpick, arXiv:2504.20966",
)
def softpick(layer: MapWeights, s: Scores) -> Scores:
    """Give scores below 0 no weight, so that a head may attend to nothing without a sink."""
    # Both sides of the fraction times e^-largest: no exponential overflows.
    largest = mx.stop_gradient(mx.clip(mx.max(s, axis=-1, keepdims=True), 0.0, None))
    # A hidden key has e^s - 1 = -1, which must not count either.
    seen = mx.where(s > -mx.inf, 1.0, 0.0)
    differences = (mx.exp(s - largest) - mx.exp(-largest)) * seen
    return mx.clip(differences, 0.0, None) / (mx.abs(differences).sum(-1, keepdims=True) + 1e-6)


row(
    "softpick",
    "scores below 0 get no weight",
    mixing="softpick",
)
