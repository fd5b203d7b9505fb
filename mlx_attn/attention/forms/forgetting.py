"""Gates set how much of the past is forgotten: forgetting transformer (arXiv:2503.02130)."""

import mlx.core as mx
import mlx.nn as nn
from jaxtyping import Float

from mlx_attn.attention.catalog import choice, row
from mlx_attn.attention.layer import MapWeights, Scores, split_heads


@choice(
    "logits",
    "forget",
    "s_h(i, j) = score_h(i, j) + sum_(j < l <= i) log sigmoid(x_l W_forget_h + b_h)",
    shift_invariant=True,
    source="forgetting transformer, arXiv:2503.02130",
    weights={"W_forget": lambda config: nn.Linear(config.d_in, config.n_maps, bias=True)},  # C -> H
    # [B, T, H] -> [B, H, T, 1]
    remembers=lambda layer, x: split_heads(
        nn.log_sigmoid(layer["W_forget"](x)), layer.config.n_maps
    ),
)
def forget(layer: MapWeights, s: Scores, log_gates: Float[mx.array, "B H T_k 1"]) -> Scores:
    """Forget: a gate for each token and head lowers the scores of everything before it."""
    total = mx.cumsum(log_gates[..., 0], axis=-1)  # [B, H, T_k]
    # [B, H, T_q, 1] - [B, H, 1, T_k]: cumulative sums give all sums over j < l <= i at once.
    return s + total[:, :, -s.shape[2] :, None] - total[:, :, None, :]


row(
    "forgetting",
    "a gate at each token sets how much of the past is forgotten; the paper's has no positions",
    logits="forget",
)
