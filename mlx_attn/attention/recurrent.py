"""Mixings that read queries and keys: linear attention, delta rules and PaTH, as T x T weights.

A delta rule keeps a state that each token corrects:

    S_t = alpha_t (I - beta_t k_t k_t^T) S_(t-1) + beta_t k_t v_t^T        y_t = S_t^T q_t

With g the running sum of log alpha, D_ij = e^(g_i - g_j) for j <= i, and L the part of
beta_i (k_i . k_j) D_ij below the diagonal, the outputs of all tokens are y = W V with

    W = (Q K^T * D) (I + L)^-1 diag(beta)

These weights may be negative and need not add up to 1.
"""

import math
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from jaxtyping import Float

from mlx_attn.attention.config import AttentionConfig
from mlx_attn.attention.layer import (
    OUT_PROJ,
    Heads,
    Inputs,
    Keys,
    MapWeights,
    Outputs,
    Queries,
    Scores,
    Values,
    choice,
    merge_heads,
    out_width,
    split_heads,
)
from mlx_attn.machine.exponentials import softmax

_Gates = Float[mx.array, "B H T_k gates"]
_State = Float[mx.array, "B H K D"]


def _unit_length(y: Heads) -> Heads:
    """Return vectors over their lengths; 0 stays 0."""
    return y * mx.rsqrt((y * y).sum(-1, keepdims=True) + 1e-6)


def unit_lower_inverse(L: Float[mx.array, "B H T T"]) -> Float[mx.array, "B H T T"]:
    """Return (I + L)^-1 for an L that is 0 on and above its diagonal, by halves.

        (A 0; C B)^-1 = (A^-1 0; -B^-1 C A^-1  B^-1)

    All blocks of a size are inverted together, so log2 T levels of matrix products do it. Products
    of powers, (I - L)(I + L^2)(I + L^4)..., give the same without rounding, and nothing usable with
    it: the powers of L grow before they vanish.
    """
    T, B, corners = L.shape[-1], L.shape[0], []
    if T == 1:
        return mx.ones_like(L)
    size = 2
    # The next power of two; the padding below has L = 0, whose inverse is the identity.
    while size < T:
        size = 2 * size
    L = mx.concatenate([L, mx.zeros_like(L)], -1)[..., :size]
    L = mx.concatenate([L, mx.zeros_like(L)], -2)[..., :size, :]
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
    return inverse[:B, :, :T, :T]


def delta_weights(q: Queries, k: Keys, gates: _Gates) -> Scores:
    """Return W for the last T_q of T_k tokens, from beta and log alpha of all, side by side.

    Without log alpha nothing is forgotten: alpha is 1.
    """
    q, k = _unit_length(q), _unit_length(mx.repeat(k, q.shape[1] // k.shape[1], 1))
    beta, log_alpha = _beta_and_log_alpha(gates)
    decay = _decays(log_alpha)
    # L, [B, H, T, T]: beta_i (k_i . k_j) D_ij for j < i.
    corrected = mx.tril(beta * (k @ k.swapaxes(2, 3)) * decay, -1)
    # The last T_q rows: queries may be fewer than keys, when decoding.
    read = (q @ k.swapaxes(2, 3)) * decay[:, :, -q.shape[2] :]
    return read @ unit_lower_inverse(corrected) * beta.swapaxes(2, 3)


def _beta_and_log_alpha(gates: _Gates) -> tuple[mx.array, mx.array]:
    beta = gates[..., :1]
    return beta, gates[..., 1:] if gates.shape[-1] > 1 else mx.zeros_like(beta)


def _decays(log_alpha: _Gates) -> Float[mx.array, "B H T T"]:
    """Return D_ij for j <= i, and 0 elsewhere."""
    total = mx.cumsum(log_alpha, axis=2)
    # Inner tril: above the diagonal the differences are positive, and their exponentials overflow.
    return mx.tril(mx.exp(mx.tril(total - total.swapaxes(2, 3))))


def _delta_heads(
    a: MapWeights, q: Queries, k: Keys, v: Values, gates: _Gates, state: _State | None
) -> tuple[Heads, _State]:
    """Return the heads of T new tokens, and the state after them, from the state S before.

    U = (I + L)^-1 diag(beta) (V - diag(e^g) K S)        heads = (Q K^T * D) U + diag(e^g) Q S
    S' = e^(g_T) S + (K * e^(g_T - g))^T U
    """
    q, k = _unit_length(q), _unit_length(mx.repeat(k, q.shape[1] // k.shape[1], 1))
    v = mx.repeat(v, q.shape[1] // v.shape[1], 1)
    beta, log_alpha = _beta_and_log_alpha(gates)
    decay = _decays(log_alpha)
    S = mx.zeros((*k.shape[:2], k.shape[3], v.shape[3]), v.dtype) if state is None else state
    # e^g, [B, H, T, 1]: how much of the state before survives until each token.
    since = mx.exp(mx.cumsum(log_alpha, axis=2))
    inverse = unit_lower_inverse(mx.tril(beta * (k @ k.swapaxes(2, 3)) * decay, -1))
    # [B, H, T, D]: each token's correction of the state.
    U = inverse @ (beta * (v - since * (k @ S)))
    heads = ((q @ k.swapaxes(2, 3)) * decay) @ U + since * (q @ S)
    # e^(g_T - g), [B, H, T, 1]
    last = decay[:, :, -1:].swapaxes(2, 3)
    return heads, since[:, :, -1:] * S + (k * last).swapaxes(2, 3) @ U


def _refuses(c: AttentionConfig) -> str:
    """Refuse changes of the scores: these forms read queries and keys, and every earlier token."""
    changes = {
        f"logits={c.logits} changes: leave --logits out": c.logits != "none",
        "position=alibi changes: use learned, rope or none": c.position == "alibi",
        f"window={c.window} hides: leave --window out": c.window > 0,
    }
    change = next((change for change, applies in changes.items() if applies), "")
    return change and f"mixing={c.mixing} reads no scores, which {change}"


def _multiply_adds(c: AttentionConfig) -> int:
    """Count, per token at full context, k k^T, the inverse, and its product with q k^T."""
    T = c.context_length
    return c.n_maps * (T * c.head_dim + T * T // 3 + T * T)


_W_BETA = {"W_beta": lambda c: nn.Linear(c.d_in, c.n_maps, bias=False)}
_DECAY = {
    "W_decay": lambda c: nn.Linear(c.d_in, c.n_maps, bias=False),
    "decay_bias": lambda c: mx.full((c.n_maps,), math.log(math.expm1(0.01))),
    "log_rate": lambda c: mx.log(mx.linspace(1, 16, c.n_maps)),
}
"""Steps of softplus(decay_bias) = 0.01 at rates from 1 to 16: heads start by forgetting 1 % to
15 % with each token."""


def _beta(a: MapWeights, x: Inputs) -> _Gates:
    return mx.sigmoid(a["W_beta"](x)).swapaxes(1, 2)[..., None]


def _log_alpha(a: MapWeights, x: Inputs) -> _Gates:
    step = nn.softplus(a["W_decay"](x) + a["decay_bias"])
    return (-mx.exp(a["log_rate"]) * step).swapaxes(1, 2)[..., None]


@choice(
    "mixing",
    "linear",
    "w(i, j) = f(q_i) . f(k_j) / sum_(l <= i) f(q_i) . f(k_l), f = elu + 1",
    sums_to_one=True,
    source="linear attention, arXiv:2006.16236",
    reads_keys=True,
    refuses=_refuses,
)
def linear(a: MapWeights, s: Scores, q: Queries, k: Keys) -> Scores:
    """Compute weights from positive features in place of e^score."""
    # The minimum keeps the branch that is not taken from overflowing, and its gradient from NaN.
    q, k = (mx.where(y > 0, y + 1, mx.exp(mx.minimum(y, 0.0))) for y in (q, k))
    similar = q @ mx.repeat(k, q.shape[1] // k.shape[1], 1).swapaxes(2, 3)
    # Scores are read only for the mask: hidden keys have weight 0.
    similar = mx.where(s > -mx.inf, similar, 0.0)
    return similar / similar.sum(-1, keepdims=True)


_DELTA: dict[str, Any] = {
    "reads_keys": True,
    "recurs": _delta_heads,
    "multiply_adds": _multiply_adds,
    "refuses": _refuses,
}


@choice(
    "mixing",
    "signed_delta",
    "w = (q k^T * D) (1 + tril(beta k k^T * D, -1))^-1 diag(beta), beta = 2 sigmoid(x W_beta_h)",
    source="Grazzi et al., arXiv:2411.12537",
    weights={**_W_BETA, **_DECAY},
    remembers=lambda a, x: mx.concatenate([2 * _beta(a, x), _log_alpha(a, x)], -1),
    **_DELTA,
)
@choice(
    "mixing",
    "gated_delta",
    "w = (q k^T * D) (1 + tril(beta k k^T * D, -1))^-1 diag(beta), D_ij = alpha_(j+1) ... alpha_i",
    source="gated delta networks, arXiv:2412.06464",
    weights={**_W_BETA, **_DECAY},
    remembers=lambda a, x: mx.concatenate([_beta(a, x), _log_alpha(a, x)], -1),
    **_DELTA,
)
@choice(
    "mixing",
    "delta",
    "w = (q k^T) (1 + tril(beta k k^T, -1))^-1 diag(beta), beta = sigmoid(x W_beta_h)",
    source="DeltaNet, arXiv:2406.06484",
    weights=_W_BETA,
    remembers=_beta,
    **_DELTA,
)
def delta(a: MapWeights, s: Scores, q: Queries, k: Keys, gates: _Gates) -> Scores:
    """Compute the delta rule; if it is gated, alpha_t = e^(-rate_h softplus(x W_decay_h + b_h)).

    I - beta k k^T has the eigenvalue 1 - beta, for signed_delta between -1 and 1. At -1 a token
    changes the sign of what the state holds for k: this is how a state can count modulo 2.
    """
    return delta_weights(q, k, gates)


# DeltaNet's output: each head over its root mean square, and a gate.


def _normed(heads: Heads, gain: Float[mx.array, " D"]) -> Heads:
    return heads * mx.rsqrt((heads * heads).mean(-1, keepdims=True) + 1e-6) * gain


@choice(
    "output",
    "normed",
    "y = concat(g * head_h / rms(head_h)) out_proj",
    source="the output norm of gated delta networks, arXiv:2412.06464",
    weights={**OUT_PROJ, "head_gain": lambda c: mx.ones((c.value_dim,))},
    affine=False,
)
def normed_output(a: MapWeights, heads: Heads, x: Inputs) -> Outputs:
    """Normalize heads to the same size, whatever their weights add up to; all share the gain g."""
    return a.out_proj(merge_heads(_normed(heads, a["head_gain"])))


@choice(
    "output",
    "normed_gated",
    "y = (concat(g * head_h / rms(head_h)) * silu(x W_gate)) out_proj",
    source="the output norm and gate of gated delta networks, arXiv:2412.06464",
    weights={
        **OUT_PROJ,
        "W_gate": lambda c: nn.Linear(c.d_in, out_width(c), bias=False),
        "head_gain": lambda c: mx.ones((c.value_dim,)),
    },
    affine=False,
)
def normed_gated_output(a: MapWeights, heads: Heads, x: Inputs) -> Outputs:
    """Gate every number of the normalised heads by x."""
    # silu(x) = x sigmoid(x), [B, T, H D]
    gate = a["W_gate"](x)
    return a.out_proj(merge_heads(_normed(heads, a["head_gain"])) * gate * mx.sigmoid(gate))


def _path_width(c: AttentionConfig) -> int:
    """Return the width of the keys, which reflections of PaTH act on."""
    return c.choices("score")[0].shape(c)[1]


def _reflections(a: MapWeights, x: Inputs) -> Float[mx.array, "B H T width_1"]:
    """Return beta and w of each token, side by side."""
    beta = 2 * _beta(a, x)  # up to a whole reflection
    return mx.concatenate([beta, _unit_length(split_heads(a["W_path"](x), beta.shape[1]))], -1)


@choice(
    "mixing",
    "path",
    "w = softmax(scale q_i R_i ... R_(j+1) k_j), R_t = I - beta_t w_t w_t^T",
    sums_to_one=True,
    source="PaTH attention, arXiv:2505.16381",
    weights={
        **_W_BETA,
        "W_path": lambda c: nn.Linear(c.d_in, c.n_maps * _path_width(c), bias=False),
    },
    reads_keys=True,
    remembers=_reflections,
    multiply_adds=lambda c: _multiply_adds(c) + 3 * c.n_maps * c.context_length * _path_width(c),
    refuses=lambda c: (
        ""
        if c.logits in ("none", "forget")
        else f"mixing=path changes scores after logits={c.logits}, so only forget, which is added "
        "to them, combines with it: leave --logits out"
    ),
)
def path(a: MapWeights, s: Scores, q: Queries, k: Keys, reflections: _Gates) -> Scores:
    """Encode positions as products of reflections, one for each token between query and key.

    The product is I - W^T M W with M = (I + tril(diag(beta) W W^T, -1))^-1 diag(beta), so the score
    of i and j loses tril(q W^T) M tril(W k^T, -1).
    """
    beta, w = reflections[..., :1], reflections[..., 1:]
    k = mx.repeat(k, q.shape[1] // k.shape[1], 1)
    M = unit_lower_inverse(mx.tril(beta * (w @ w.swapaxes(2, 3)), -1)) * beta.swapaxes(2, 3)
    T_q, T_k = s.shape[2:]
    # [B, H, T_q, T]; only reflections up to the query's own token act.
    read = mx.tril(q @ w.swapaxes(2, 3), T_k - T_q)
    # Reflections after the key's token act on it, so the diagonal is left out.
    lost = read @ M @ mx.tril(w @ k.swapaxes(2, 3), -1)
    return softmax(s - a.config.scale * lost)


def _selective_refuses(c: AttentionConfig) -> str:
    changes = {
        f"position={c.position}": c.position == "rope",
        "qk_norm": c.qk_norm,
        f"short_conv={c.short_conv}": c.short_conv != "none",
    }
    setting = next((name for name, applies in changes.items() if applies), "")
    return setting and (
        "mixing=selective reads the queries of earlier tokens as the score map gives them, and "
        f"{setting} changes them afterwards: use learned, alibi or no positions, without qk_norm "
        "and short_conv"
    )


def _first_head_queries(a: MapWeights, x: Inputs) -> Float[mx.array, "B 1 T K_1"]:
    """Return the first head's query of each token and a 1, which marks slots that hold a token."""
    q = a.maps.score.apply(a, x)[0][:, :1]
    return mx.concatenate([q, mx.ones_like(q[..., :1])], -1)


@choice(
    "mixing",
    "selective",
    "w = softmax(s_h(i, j) - sum_(j < l < i) relu(score_1(l, j))), but the first token stays",
    sums_to_one=True,
    source="selective attention, arXiv:2410.02703",
    reads_keys=True,
    remembers=_first_head_queries,
    remembers_all=True,
    multiply_adds=lambda c: c.context_length * (_path_width(c) + 2),
    refuses=_selective_refuses,
)
def selective(
    a: MapWeights, s: Scores, q: Queries, k: Keys, memory: Float[mx.array, "B 1 T_k width_1"]
) -> Scores:
    """Withdraw tokens that the first head attends to from all heads of later tokens."""
    # [B, 1, 1, T_k]
    is_token = memory[..., -1:].swapaxes(2, 3)
    # The first token stays visible: a query must have something to attend to.
    is_first = mx.cumsum(is_token, axis=-1) * is_token == 1
    # [B, 1, T_k, T_k]: each row withdraws earlier tokens, so it ends before the diagonal.
    selected = mx.tril(a.config.scale * (memory[..., :-1] @ k[:, :1].swapaxes(2, 3)), -1)
    selected = mx.where(is_first, 0.0, mx.clip(selected, 0.0, None))
    # Sums over the tokens before each query, its own selection left out.
    earlier = mx.cumsum(selected, axis=2) - selected
    return softmax(s - earlier[:, :, -s.shape[2] :])
