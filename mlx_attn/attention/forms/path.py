"""PaTH (arXiv:2505.16381): tokens between query and key reflect, in place of positions.

The paper's w has a low rank and a short convolution, its beta a bias, and heads that share a key
share both; with `forgetting`, it also scales the gates.
"""

import mlx.core as mx
import mlx.nn as nn
from jaxtyping import Float

from mlx_attn.attention.catalog import choice, row
from mlx_attn.attention.forms.delta_rule import (
    W_BETA,
    Gates,
    inverse_cost,
    unit_length,
    unit_lower_inverse,
)
from mlx_attn.attention.layer import Inputs, Keys, MapWeights, Queries, Scores, split_heads
from mlx_attn.machine.operations import softmax


def _reflections(layer: MapWeights, x: Inputs) -> Float[mx.array, "B H T width_1"]:
    """Return what gives beta and w of each token, side by side."""
    parts = (layer["W_beta"](x), layer["W_path"](x))
    return mx.concatenate([split_heads(y, layer.config.n_maps) for y in parts], -1)


@choice(
    "mixing",
    "path",
    "w = softmax(scale q_i R_i ... R_(j+1) k_j), R_t = I - beta_t w_t w_t^T, |w_t| = 1, beta_t < 2",
    sums_to_one=True,
    source="PaTH attention, arXiv:2505.16381",
    weights={
        **W_BETA,
        "W_path": lambda config: nn.Linear(
            config.d_in, config.n_maps * config.key_width, bias=False
        ),
    },
    reads_keys=True,
    remembers=_reflections,
    multiply_adds=lambda config: (
        inverse_cost(config)
        + config.n_maps * config.context_length * (config.context_length + 2 * config.key_width)
    ),
    refuses=lambda config: (
        ""
        if config.logits in ("none", "forget")
        else f"mixing=path changes scores after logits={config.logits}, so only forget, which is "
        "added to them, combines with it: leave --logits out"
    ),
)
def path(layer: MapWeights, s: Scores, q: Queries, k: Keys, reflections: Gates) -> Scores:
    """Encode positions as products of reflections, one for each token between query and key.

    The product is I - W^T M W with M = (I + tril(diag(beta) W W^T, -1))^-1 diag(beta), so the score
    of i and j loses tril(q W^T) M tril(W k^T, -1).
    """
    # Here, in float32: of rounded beta and w the products of a thousand would grow or vanish.
    beta = 2 * mx.sigmoid(reflections[..., :1])  # [B, H, T, 1], up to a whole reflection
    w = unit_length(reflections[..., 1:])  # [B, H, T, width]
    k = mx.repeat(k, q.shape[1] // k.shape[1], axis=1)  # for the heads that share it
    # [B, H, T, T], for all T tokens, the cached ones too.
    M = unit_lower_inverse(mx.tril(beta * (w @ w.swapaxes(2, 3)), -1)) * beta.swapaxes(2, 3)
    T_q, T_k = s.shape[2:]
    # [B, H, T_q, T]; only reflections up to the query's own token act.
    read = mx.tril(q @ w.swapaxes(2, 3), T_k - T_q)
    # Reflections after the key's token act on it, so the diagonal is left out.
    lost = read @ M @ mx.tril(w @ k.swapaxes(2, 3), -1)
    return softmax(s - layer.config.scale * lost)


row(
    "path",
    "PaTH: tokens between reflect the query, in place of positions; the paper convolves a narrow w",
    mixing="path",
    position="none",
)
