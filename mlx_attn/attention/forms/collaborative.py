"""All heads share W_query and W_key: collaborative attention (arXiv:2006.16362).

    S_h = W_query diag(m_h) W_key^T

Each head has a mixing vector m_h, the weights of the shared coordinates for it.
"""

import mlx.core as mx

from mlx_attn.attention.catalog import FORMS, choice, row
from mlx_attn.attention.layer import W_QUERY, Inputs, Keys, MapWeights, Queries


@choice(
    "score",
    "collaborative",
    "q_h = (x W_query) * m_h, k = x W_key",
    input_weights=("W_query", "W_key"),
    source="Cordonnier et al., arXiv:2006.16362",
    weights={
        **W_QUERY,
        "W_key": W_QUERY["W_query"],  # as wide: n_kv_heads does not count
        # Each head its own block of the mixing vector: the start is the separate form.
        "mixing": lambda config: mx.repeat(mx.eye(config.n_heads), config.head_dim, axis=1),
    },
    shape=lambda config: (1, config.n_heads * config.head_dim),
)
def collaborative(layer: MapWeights, x: Inputs) -> tuple[Queries, Keys]:
    """Share both maps among all heads, S_h = W_query diag(m_h) W_key^T, with one wide key."""
    q = layer.W_query(x)[:, None] * layer["mixing"][:, None]  # [B, 1, T, H D] * [H, 1, H D]
    # [B, 1, T, H D]: m_h chooses how much each of the H D coordinates counts for head h.
    return q, layer.W_key(x)[:, None]


row(
    "collaborative",
    "heads share W_query and W_key, each with a mixing vector m_h; the authors' also biases keys",
    group=FORMS,
    score="collaborative",
)
