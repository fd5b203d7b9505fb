"""DeltaNet (arXiv:2406.06484), gated (2412.06464), or of eigenvalues from -1 to 1 (2411.12537).

No softmax: each token corrects a state, by q and k of length 1; the authors' q has 1 / sqrt(D).
"""

import math
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from mlx_attn.attention.catalog import choice, row
from mlx_attn.attention.forms import delta_rule
from mlx_attn.attention.layer import Inputs, Keys, MapWeights, Queries, Scores, split_heads

_DECAY = {
    "W_decay": lambda config: nn.Linear(config.d_in, config.n_maps, bias=False),  # C -> H
    "decay_bias": lambda config: mx.full((config.n_maps,), math.log(math.expm1(0.01))),
    "log_rate": lambda config: mx.log(mx.linspace(1, 16, config.n_maps)),
}
"""Steps of softplus(decay_bias) = 0.01 at rates from 1 to 16: heads start by forgetting 1 % to
15 % with each token."""


def _gates(layer: MapWeights, x: Inputs, largest: int = 1) -> delta_rule.Gates:
    """Return beta, from 0 to `largest`, and log alpha of each token."""
    step = nn.softplus(layer["W_decay"](x) + layer["decay_bias"])  # [B, T, H], above 0
    # [B, T, H] -> [B, H, T, 1], at most 0
    log_alpha = split_heads(-mx.exp(layer["log_rate"]) * step, layer.config.n_maps)
    # [B, H, T, 2]: beta, log alpha
    return mx.concatenate([largest * delta_rule.write_strength(layer, x), log_alpha], -1)


_DELTA: dict[str, Any] = {
    "reads_keys": True,  # instead of scores
    "recurs": delta_rule.delta_heads,
    "multiply_adds": delta_rule.inverse_cost,
    "refuses": delta_rule.refuses_other_scores,
}


@choice(
    "mixing",
    "signed_delta",
    "w = (q k^T * D) (1 + tril(beta k k^T * D, -1))^-1 diag(beta), beta = 2 sigmoid(x W_beta_h)",
    source="Grazzi et al., arXiv:2411.12537",
    weights=delta_rule.W_BETA | _DECAY,
    remembers=lambda layer, x: _gates(layer, x, largest=2),
    **_DELTA,
)
@choice(
    "mixing",
    "gated_delta",
    "w = (q k^T * D) (1 + tril(beta k k^T * D, -1))^-1 diag(beta), D_ij = alpha_(j+1) ... alpha_i",
    source="gated delta networks, arXiv:2412.06464",
    weights=delta_rule.W_BETA | _DECAY,
    remembers=_gates,
    **_DELTA,
)
@choice(
    "mixing",
    "delta",
    "w = (q k^T) (1 + tril(beta k k^T, -1))^-1 diag(beta), beta = sigmoid(x W_beta_h), |q|=|k|=1",
    source="DeltaNet, arXiv:2406.06484",
    weights=delta_rule.W_BETA,
    remembers=delta_rule.write_strength,
    **_DELTA,
)
def delta(layer: MapWeights, s: Scores, q: Queries, k: Keys, gates: delta_rule.Gates) -> Scores:
    """Compute the delta rule of unit q, k; alpha_t is 1 or e^(-rate_h softplus(x W_decay_h + b_h)).

    I - beta k k^T has the eigenvalue 1 - beta, for signed_delta between -1 and 1. At -1 a token
    changes the sign of the state's value for k: this is how a state can count modulo 2.
    """
    return delta_rule.delta_weights(q, k, gates)  # [B, H, T_q, T_k]; scores are not read


row(
    "deltanet",
    "gated DeltaNet: no softmax, each token corrects a matrix that fades; q, k of length 1",
    "S_t = alpha_t (I - beta_t k_t k_t^T) S_(t-1) + beta_t k_t v_t^T, head_h = q_t S_t",
    mixing="gated_delta",
    position="none",
)
row(
    "deltanet-signed",
    "DeltaNet with eigenvalues from -1 to 1: a token may change the sign of a memory",
    "S_t = alpha_t (I - beta_t k_t k_t^T) S_(t-1) + beta_t k_t v_t^T, 0 < beta_t < 2",
    mixing="signed_delta",
    position="none",
)
