"""Positive features of query and key replace the softmax: linear attention (arXiv:2006.16236)."""

import mlx.core as mx

from mlx_attn.attention.catalog import choice, row
from mlx_attn.attention.forms.delta_rule import refuses_other_scores
from mlx_attn.attention.layer import Keys, MapWeights, Queries, Scores


@choice(
    "mixing",
    "linear",
    "w(i, j) = f(q_i) . f(k_j) / sum_(l <= i) f(q_i) . f(k_l), f = elu + 1",
    sums_to_one=True,
    source="linear attention, arXiv:2006.16236",
    reads_keys=True,
    refuses=refuses_other_scores,
)
def linear(layer: MapWeights, s: Scores, q: Queries, k: Keys) -> Scores:
    """Compute weights from positive features in place of e^score."""
    # The minimum keeps the branch that is not taken from overflowing, and its gradient from NaN.
    q, k = (mx.where(y > 0, y + 1, mx.exp(mx.minimum(y, 0.0))) for y in (q, k))
    k = mx.repeat(k, q.shape[1] // k.shape[1], axis=1)  # for the heads that share it
    similar = q @ k.swapaxes(2, 3)  # f(q_i) . f(k_j), [B, H, T_q, T_k]
    # Scores are read only for the mask: hidden keys have weight 0.
    similar = mx.where(s > -mx.inf, similar, 0.0)
    # The authors' 1e-6: far below 0 all features are 0, and so is their sum.
    return similar / (similar.sum(-1, keepdims=True) + 1e-6)


row(
    "linear",
    "positive features of query and key replace the softmax",
    mixing="linear",
    position="learned",
)
