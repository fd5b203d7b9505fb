"""Reformer's shared query and key (arXiv:2001.04451): no token attends to itself if it can."""

import mlx.core as mx

from mlx_attn.attention.catalog import row
from mlx_attn.attention.layer import MapWeights, Scores, choice


@choice(
    "logits",
    "self_mask",
    "s_h(i, i) = -10^9",
    shift_invariant=True,
    input_weights=(),
    source="Reformer, arXiv:2001.04451, appendix A",
)
def self_mask(layer: MapWeights, s: Scores) -> Scores:
    """Keep tokens from attending to themselves, except the first, which sees nothing else."""
    T_q, T_k = s.shape[2:]
    # The queries are the last T_q of the T_k tokens: [T_q, 1].
    query = mx.arange(T_k - T_q, T_k)[:, None]
    # Finite, unlike the mask: the first token's row would otherwise be all minus infinity, and NaN.
    return mx.where(mx.arange(T_k)[None, :] == query, -1e9, s)


row(
    "shared-self-mask",
    "no token attends to itself if it can help it; Reformer's keys also have unit length",
    score="shared",
    logits="self_mask",
)
