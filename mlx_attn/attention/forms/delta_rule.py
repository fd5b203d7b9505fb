"""The delta rule, as T x T weights and as a state, and the inverse that PaTH needs, too.

A delta rule keeps a state that each token corrects:

    S_t = alpha_t (I - beta_t k_t k_t^T) S_(t-1) + beta_t k_t v_t^T        y_t = S_t^T q_t

With g the running sum of log alpha, D_ij = e^(g_i - g_j) for j <= i, and L the part of
beta_i (k_i . k_j) D_ij below the diagonal, the outputs of all tokens are y = W V with

    W = (Q K^T * D) (I + L)^-1 diag(beta)

These weights may be negative and need not add up to 1.
"""

import mlx.core as mx
import mlx.nn as nn
from jaxtyping import Float

from mlx_attn.attention.config import AttentionConfig
from mlx_attn.attention.layer import (
    Heads,
    Inputs,
    Keys,
    MapWeights,
    Queries,
    Scores,
    Values,
    split_heads,
)

Gates = Float[mx.array, "B H T_k gates"]
State = Float[mx.array, "B H K D"]

W_BETA = {"W_beta": lambda config: nn.Linear(config.d_in, config.n_maps, bias=False)}  # C -> H


def write_strength(layer: MapWeights, x: Inputs) -> Gates:
    """Return beta of every token and head: how much of its value it writes, from 0 to 1."""
    return split_heads(mx.sigmoid(layer["W_beta"](x)), layer.config.n_maps)  # [B, H, T, 1]


def unit_length(y: Heads) -> Heads:
    """Return vectors over their lengths; 0 stays 0."""
    return y * mx.rsqrt((y * y).sum(-1, keepdims=True) + 1e-6)  # [B, H, T, K]


def delta_weights(q: Queries, k: Keys, gates: Gates) -> Scores:
    """Return W for the last T_q of T_k tokens, from beta and log alpha of all, side by side.

    Without log alpha nothing is forgotten: alpha is 1.
    """
    q, k = _unit_length(q, k)
    beta, log_alpha = _beta_and_log_alpha(gates)
    read, inverse = _read_and_inverse(q, k, beta, _decays(log_alpha))
    return read @ inverse * beta.swapaxes(2, 3)  # [B, H, T_q, T_k]


def delta_heads(
    layer: MapWeights, q: Queries, k: Keys, v: Values, gates: Gates, state: State | None
) -> tuple[Heads, State]:
    """Return the heads of T new tokens, and the state after them, from the state S before.

    U = (I + L)^-1 diag(beta) (V - diag(e^g) K S)        heads = (Q K^T * D) U + diag(e^g) Q S
    S' = e^(g_T) S + (K * e^(g_T - g))^T U
    """
    q, k = _unit_length(q, k)  # [B, H, T, K] both
    v = mx.repeat(v, q.shape[1] // v.shape[1], axis=1)  # for the heads that share it
    beta, log_alpha = _beta_and_log_alpha(gates)
    decay = _decays(log_alpha)
    read, inverse = _read_and_inverse(q, k, beta, decay)
    S = mx.zeros((*k.shape[:2], k.shape[3], v.shape[3]), v.dtype) if state is None else state
    # e^g, [B, H, T, 1]: how much of the state before survives until each token.
    since = mx.exp(mx.cumsum(log_alpha, axis=2))
    # [B, H, T, D]: each token's correction of the state.
    U = inverse @ (beta * (v - since * (k @ S)))
    heads = read @ U + since * (q @ S)  # of the new tokens, and of all before
    # e^(g_T - g), [B, H, T, 1]
    last = decay[:, :, -1:].swapaxes(2, 3)
    return heads, since[:, :, -1:] * S + (k * last).swapaxes(2, 3) @ U


def _unit_length(q: Queries, k: Keys) -> tuple[Queries, Heads]:
    return unit_length(q), unit_length(mx.repeat(k, q.shape[1] // k.shape[1], axis=1))


def _read_and_inverse(
    q: Queries, k: Keys, beta: Gates, decay: Float[mx.array, "B H T T"]
) -> tuple[Scores, Float[mx.array, "B H T T"]]:
    """Return Q K^T * D for the last T_q of T tokens, and (I + L)^-1."""
    # L, [B, H, T, T]: beta_i (k_i . k_j) D_ij for j < i.
    L = mx.tril(beta * (k @ k.swapaxes(2, 3)) * decay, -1)
    # The last T_q rows: queries may be fewer than keys, when decoding.
    return (q @ k.swapaxes(2, 3)) * decay[:, :, -q.shape[2] :], unit_lower_inverse(L)


def _beta_and_log_alpha(gates: Gates) -> tuple[mx.array, mx.array]:
    beta = gates[..., :1]  # [B, H, T, 1]
    return beta, gates[..., 1:] if gates.shape[-1] > 1 else mx.zeros_like(beta)


def _decays(log_alpha: Gates) -> Float[mx.array, "B H T T"]:
    """Return D_ij for j <= i, and 0 elsewhere."""
    total = mx.cumsum(log_alpha, axis=2)  # g, [B, H, T, 1]
    # Inner tril: above the diagonal the differences are positive, and their exponentials overflow.
    return mx.tril(mx.exp(mx.tril(total - total.swapaxes(2, 3))))


def unit_lower_inverse(L: Float[mx.array, "B H T T"]) -> Float[mx.array, "B H T T"]:
    """Return (I + L)^-1 for an L that is 0 on and above its diagonal, by halves.

        (A 0; C B)^-1 = (A^-1 0; -B^-1 C A^-1  B^-1)

    All blocks of a size are inverted together, so log2 T levels of matrix products do it. Products
    of powers, (I - L)(I + L^2)(I + L^4)..., give the same without rounding, and nothing usable with
    it: the powers of L grow before they vanish.
    """
    T, B, corners = L.shape[-1], L.shape[0], []  # from large to small
    if T == 1:
        return mx.ones_like(L)
    # Up to the next power of two: the padding has L = 0, whose inverse is the identity.
    size = 1 << (T - 1).bit_length()
    L = mx.pad(L, [(0, 0), (0, 0), (0, size - T), (0, size - T)])
    # Store the corner C of every block, and stack A and B along the batch: [2 B, H, size, size].
    while size > 2:
        size = size // 2
        corners.append(L[..., size:, :size])
        L = mx.concatenate([L[..., :size, :size], L[..., size:, size:]], 0)
    # For two rows the inverse is I - L: L^2 is 0.
    inverse = mx.eye(2, dtype=L.dtype) - L
    # Join pairs of blocks again, from the smallest to the whole.
    for corner in corners[::-1]:
        first, second = inverse[: corner.shape[0]], inverse[corner.shape[0] :]
        below = -(second @ corner @ first)
        above = mx.concatenate([first, mx.zeros_like(first)], -1)
        inverse = mx.concatenate([above, mx.concatenate([below, second], -1)], -2)
    return inverse[:B, :, :T, :T]  # without the padding


def inverse_cost(config: AttentionConfig) -> int:
    """Count, per token at full context, k k^T, the inverse, and its product with q k^T."""
    T = config.context_length
    return config.n_maps * (T * config.key_width + T * T // 3 + T * T)


def refuses_other_scores(config: AttentionConfig) -> str:
    """Refuse changes of the scores: these forms read queries and keys, and every earlier token."""
    changes = {
        f"logits={config.logits} changes: leave --logits out": config.logits != "none",
        "position=alibi changes: use learned, rope or none": config.position == "alibi",
        f"window={config.window} hides: leave --window out": config.window > 0,
    }
    change = next((change for change, applies in changes.items() if applies), "")
    return change and f"mixing={config.mixing} reads no scores, which {change}"
