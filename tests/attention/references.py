"""Each hook and mixing of the package in NumPy.

Neither MLX nor the code that it judges is used.
"""

from collections.abc import Callable

import numpy as np

Array = np.ndarray
Reference = Callable[[dict[str, Array], Array, Array], Array]
"""From a layer's weights, its input [T, C] and scores [H, T, T] to new scores, or to weights."""


def _forgotten(w: dict[str, Array], x: Array, s: Array) -> Array:
    """Add up the logarithms of the gates between key j and query i, one by one."""
    gates = x @ w["W_forget.weight"].T + w["W_forget.bias"]
    logs, y = -np.log(1 + np.exp(-gates)), s.copy()
    for i, j in zip(*np.tril_indices(len(x), -1), strict=True):
        y[:, i, j] += logs[j + 1 : i + 1].sum(axis=0)
    return y


def _with_extra(s: Array, extra: Array) -> Array:
    powers = np.exp(s)
    return powers / (np.exp(extra) + powers.sum(axis=2, keepdims=True))


def _softpick(w: dict[str, Array], x: Array, s: Array) -> Array:
    # A hidden key counts 0; expm1 of its -inf would be -1.
    differences = np.where(s > -np.inf, np.expm1(s), 0.0)
    # The 1e-6 of the layer is added after both sides are divided by e^largest.
    small = 1e-6 * np.exp(np.maximum(s.max(axis=2, keepdims=True), 0))
    return np.maximum(differences, 0) / (np.abs(differences).sum(axis=2, keepdims=True) + small)


def softmax_of(s: Array) -> Array:
    """Return e^s_ij / sum_j e^s_ij."""
    powers = np.exp(s - s.max(axis=2, keepdims=True))
    return powers / powers.sum(axis=2, keepdims=True)


def _queries_and_keys(w: dict[str, Array], x: Array, H: int) -> tuple[Array, Array]:
    q, k = ((x @ w[f"W_{part}.weight"].T).reshape(len(x), H, -1) for part in ("query", "key"))
    return q.swapaxes(0, 1), k.swapaxes(0, 1)


def _linear(w: dict[str, Array], x: Array, s: Array) -> Array:
    """Return the weights from running sums, one query at a time."""
    q, k = (np.where(y > 0, y + 1, np.exp(y)) for y in _queries_and_keys(w, x, len(s)))
    weights = np.zeros_like(s)
    for h, i in np.ndindex(len(s), len(x)):
        weights[h, i, : i + 1] = k[h, : i + 1] @ q[h, i] / (k[h, : i + 1].sum(axis=0) @ q[h, i])
    return weights


def _beta(w: dict[str, Array], x: Array) -> Array:
    return 1 / (1 + np.exp(-x @ w["W_beta.weight"].T))


def gates_of(w: dict[str, Array], x: Array) -> tuple[Array, Array]:
    """Return beta and log alpha [T, H]; alpha is 1 in a layer that forgets nothing."""
    beta = _beta(w, x)
    if "W_decay.weight" not in w:
        return beta, np.zeros_like(beta)
    step = np.log1p(np.exp(x @ w["W_decay.weight"].T + w["decay_bias"]))
    return beta, -np.exp(w["log_rate"]) * step


def delta_rule(q: Array, k: Array, v: Array, beta: Array, log_alpha: Array) -> Array:
    """Return the outputs [T, D_v] of one head, token by token, from the state S.

    S_t = alpha_t (I - beta_t k_t k_t^T) S_(t-1) + beta_t k_t v_t^T        y_t = S_t^T q_t
    """
    q, k = (y / np.sqrt((y**2).sum(axis=1, keepdims=True) + 1e-6) for y in (q, k))
    # [K, D_v]
    S, outputs = np.zeros((k.shape[1], v.shape[1])), []
    for q_t, k_t, v_t, beta_t, log_alpha_t in zip(q, k, v, beta, log_alpha, strict=True):
        S = np.exp(log_alpha_t) * S
        # S^T k is the state's value for k; it moves towards v by the share beta.
        S = S + beta_t * np.outer(k_t, v_t - S.T @ k_t)
        outputs.append(S.T @ q_t)
    return np.stack(outputs)


def _delta(w: dict[str, Array], x: Array, s: Array, most: float = 1.0) -> Array:
    """Return the weights of values as the outputs of unit vectors."""
    beta, log_alpha = gates_of(w, x)
    heads = zip(*_queries_and_keys(w, x, len(s)), most * beta.T, log_alpha.T, strict=True)
    return np.stack([delta_rule(q, k, np.eye(len(x)), b, a) for q, k, b, a in heads])


def _path(w: dict[str, Array], x: Array, s: Array) -> Array:
    """Apply the reflections between query and key to each query, one after the other."""
    H, beta, s = len(s), 2 * _beta(w, x), s.copy()
    q, k = _queries_and_keys(w, x, H)
    directions = (x @ w["W_path.weight"].T).reshape(len(x), H, -1).swapaxes(0, 1)
    directions /= np.sqrt((directions**2).sum(axis=2, keepdims=True) + 1e-6)
    for h, i in np.ndindex(H, len(x)):
        turned = q[h, i]
        # From the query's token down to the key's: R_i first.
        for j in range(i, -1, -1):
            s[h, i, j] += (turned - q[h, i]) @ k[h, j] / np.sqrt(q.shape[2])
            # The reflection of token j acts on the keys before it.
            turned = turned - beta[j, h] * (turned @ directions[h, j]) * directions[h, j]
    return softmax_of(s)


def _selective(w: dict[str, Array], x: Array, s: Array) -> Array:
    """Add up the first head's selections by the tokens between a key and a query, one by one."""
    q, k = _queries_and_keys(w, x, len(s))
    selected, s = np.maximum(q[0] @ k[0].T / np.sqrt(q.shape[2]), 0), s.copy()
    for i, j in zip(*np.tril_indices(len(x)), strict=True):
        s[:, i, j] -= selected[j + 1 : i, j].sum() if j else 0
    return softmax_of(s)


REFERENCES: dict[str, dict[str, Reference]] = {
    "logits": {
        "temperature": lambda w, x, s: np.exp(w["log_temperature"])[:, None, None] * s,
        "talking": lambda w, x, s: np.tensordot(w["talk_logits"], s, 1),
        "self_mask": lambda w, x, s: np.where(np.eye(len(x), dtype=bool), -1e9, s),
        "forget": _forgotten,
    },
    "mixing": {
        "uniform": lambda w, x, s: (s > -np.inf) / (s > -np.inf).sum(axis=2, keepdims=True),
        "off_by_one": lambda w, x, s: _with_extra(s, np.zeros(())),
        "sink": lambda w, x, s: _with_extra(s, w["sink"][:, None, None]),
        "talking": lambda w, x, s: np.tensordot(w["talk_weights"], softmax_of(s), 1),
        "sigmoid": lambda w, x, s: 1 / (1 + np.exp(-s - w["weight_bias"][:, None, None])),
        "softpick": _softpick,
        "linear": _linear,
        "delta": _delta,
        "gated_delta": _delta,
        "signed_delta": lambda w, x, s: _delta(w, x, s, most=2.0),
        "path": _path,
        "selective": _selective,
    },
}
"""What each hook of the package computes, by its map and its name."""
