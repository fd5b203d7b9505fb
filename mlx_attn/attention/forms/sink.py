"""A head may attend to nothing: one more term in the denominator of its softmax."""

import mlx.core as mx

from mlx_attn.attention.catalog import choice, row
from mlx_attn.attention.layer import MapWeights, Scores


def _softmax_with(s: Scores, extra: mx.array) -> Scores:
    """Compute a softmax with one more logit, and drop its weight."""
    # [B, H, T_q, 1]; the shift cancels, so it needs no gradient.
    largest = mx.stop_gradient(mx.maximum(mx.max(s, axis=-1, keepdims=True), extra))
    powers = mx.exp(s - largest)  # [B, H, T_q, T_k]; 0 for hidden keys
    return powers / (mx.exp(extra - largest) + powers.sum(axis=-1, keepdims=True))


@choice(
    "mixing",
    "off_by_one",
    "w_h = e^s_h / (1 + sum e^s_h)",
    source="Miller, Attention is off by one, 2023",
)
def off_by_one(layer: MapWeights, s: Scores) -> Scores:
    """Add 1 to the denominator, so that a head may attend to nothing."""
    return _softmax_with(s, mx.array(0.0))  # e^0 is the 1


@choice(
    "mixing",
    "sink",
    "w_h = e^s_h / (e^b_h + sum e^s_h)",
    source="learned sinks, gpt-oss, 2025",
    weights={"sink": lambda config: mx.zeros((config.n_maps,))},  # [H]: at first off_by_one
)
def sink(layer: MapWeights, s: Scores) -> Scores:
    """Add a trained logit per head that attends to nothing."""
    return _softmax_with(s, layer["sink"][:, None, None])  # [H] -> [H, 1, 1]


row(
    "sink",
    "a trained logit for each head that attends to nothing",
    mixing="sink",
)
row(
    "off-by-one",
    "a head may attend to nothing",
    mixing="off_by_one",
)
