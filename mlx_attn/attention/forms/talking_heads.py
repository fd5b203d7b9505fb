"""Scores and weights are mixed across heads: talking-heads attention (arXiv:2003.02436)."""

import mlx.core as mx

from mlx_attn.attention.catalog import choice, row
from mlx_attn.attention.layer import MapWeights, Scores
from mlx_attn.machine.operations import softmax


@choice(
    "logits",
    "talking",
    "s_h = sum_g P_hg score_g",
    input_weights=(),
    shift_invariant=True,
    source="talking-heads attention, arXiv:2003.02436",
    weights={"talk_logits": lambda config: mx.eye(config.n_maps)},  # [H, H]
    multiply_adds=lambda config: config.n_maps**2 * config.context_length,
)
def talking_logits(layer: MapWeights, s: Scores) -> Scores:
    """Replace each head's scores by a trained mixture of all heads' scores."""
    # The mixture starts as the identity, so training starts at the standard form.
    return mx.einsum("hg,bgij->bhij", layer["talk_logits"], s)


@choice(
    "mixing",
    "talking",
    "w_h = sum_g R_hg softmax(s_g)",
    shift_invariant=True,
    source="talking-heads attention, arXiv:2003.02436",
    weights={"talk_weights": lambda config: mx.eye(config.n_maps)},  # [H, H]
    multiply_adds=lambda config: config.n_maps**2 * config.context_length,
)
def talking_weights(layer: MapWeights, s: Scores) -> Scores:
    """Replace each head's weights by a trained mixture of all heads' weights."""
    return mx.einsum("hg,bgij->bhij", layer["talk_weights"], softmax(s))  # [B, H, T_q, T_k]


row(
    "talking-heads",
    "heads' scores and weights are mixed across heads",
    logits="talking",
    mixing="talking",
)
