"""Reformer's one matrix for query and key (arXiv:2001.04451), and its mask of the own token."""

import mlx.core as mx

from mlx_attn.attention.catalog import FORMS, choice, row
from mlx_attn.attention.layer import W_QUERY, Inputs, Keys, MapWeights, Queries, Scores, split_heads


@choice(
    "score",
    "shared",
    "q_h = k_h = x W_query_h",
    input_weights=("W_query",),
    source="Reformer, arXiv:2001.04451",
    weights=W_QUERY,
    refuses=lambda config: (
        ""
        if config.n_kv_heads == config.n_heads
        else f"score=shared uses the queries as keys, so n_kv_heads={config.n_kv_heads} must be "
        f"n_heads={config.n_heads}"
    ),
)
def shared(layer: MapWeights, x: Inputs) -> tuple[Queries, Keys]:
    """Use one matrix for query and key: S_h is symmetric and positive semidefinite."""
    q = split_heads(layer.W_query(x), layer.config.n_heads)
    return q, q  # [B, H, T, D]; the key is normalized and rotated like the query


@choice(
    "logits",
    "self_mask",
    "s_h(i, i) = -10^9",
    input_weights=(),
    shift_invariant=True,
    source="Reformer, arXiv:2001.04451",
)
def self_mask(layer: MapWeights, s: Scores) -> Scores:
    """Keep tokens from attending to themselves, except the first, which sees nothing else."""
    T_q, T_k = s.shape[2:]  # of [B, H, T_q, T_k]
    # The queries are the last T_q of the T_k tokens: [T_q, 1].
    query = mx.arange(T_k - T_q, T_k)[:, None]
    # Finite, unlike the mask: the first token's row would otherwise be all minus infinity, and NaN.
    return mx.where(mx.arange(T_k)[None, :] == query, -1e9, s)


row(
    "shared-query-key",
    "one matrix for query and key: the scores are symmetric",
    group=FORMS,
    score="shared",
)
row(
    "shared-self-mask",
    "no token attends to itself if it can help it; Reformer's keys also have unit length",
    score="shared",
    logits="self_mask",
)
