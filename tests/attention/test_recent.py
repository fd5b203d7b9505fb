"""Variants from papers equal an independent reference in NumPy, and so do their gradients.

Causality and decoding of all variants are laws, which test_laws.py tries.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlx_attn.attention.attention import Attention
from mlx_attn.attention.catalog import VARIANTS
from mlx_attn.attention.config import AttentionConfig
from mlx_attn.attention.forms.positions import alibi_slopes
from tests.attention.conftest import Arrays, check_gradients, layer_of, numbers, text

C, T, H = 16, 12, 4
FIRST_VALUES = np.random.default_rng(2).normal(size=(2, H, T, C // H))
NO_POSITION = {"position": "none"}
CASES: dict[str, dict[str, Any]] = {
    **{
        name: {"position": "alibi", **row.settings}
        for name, row in VARIANTS.items()
        if row.group != "forms" and not row.kv_sharing
    },
    "two hooks": {"logits": "talking+self_mask", **NO_POSITION},
    "delta": {"mixing": "delta", **NO_POSITION},
    "normed": {"output": "normed", **NO_POSITION},
    "convolved": {"short_conv": "silu", **NO_POSITION},
    "linearly convolved": {**VARIANTS["gated-deltanet"].settings, "short_conv": "linear"},
}


def layer(case: str, **settings: Any) -> Attention:
    settings = {**CASES.get(case, NO_POSITION), **settings}
    settings.pop("global_every", None)
    return layer_of(**settings | ({"window": 3} if settings.get("window") else {}))


def run(module: Attention) -> mx.array:
    return module(text(), None, {"first_values": mx.array(FIRST_VALUES, mx.float32)})


def sigmoid(y: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-y))


Reference = Callable[[Arrays, np.ndarray, np.ndarray], np.ndarray]
"""From a layer's weights, its input [T, C] and scores [H, T, T] to new scores, or to weights."""


def forgotten(w: Arrays, x: np.ndarray, s: np.ndarray) -> np.ndarray:
    """Add up the logarithms of the gates between key j and query i, one by one."""
    gates = x @ w["W_forget.weight"].T + w["W_forget.bias"]
    logs, y = -np.log(1 + np.exp(-gates)), s.copy()
    for i, j in zip(*np.tril_indices(len(x), -1), strict=True):
        y[:, i, j] += logs[j + 1 : i + 1].sum(axis=0)
    return y


def with_extra(s: np.ndarray, extra: np.ndarray) -> np.ndarray:
    powers = np.exp(s)
    return powers / (np.exp(extra) + powers.sum(axis=2, keepdims=True))


def softpick(w: Arrays, x: np.ndarray, s: np.ndarray) -> np.ndarray:
    # A hidden key counts 0; expm1 of its -inf would be -1.
    differences = np.where(s > -np.inf, np.expm1(s), 0.0)
    # The 1e-6 of the layer is added after both sides are divided by e^largest.
    small = 1e-6 * np.exp(np.maximum(s.max(axis=2, keepdims=True), 0))
    return np.maximum(differences, 0) / (np.abs(differences).sum(axis=2, keepdims=True) + small)


def softmax_of(s: np.ndarray) -> np.ndarray:
    """Return e^s_ij / sum_j e^s_ij."""
    powers = np.exp(s - s.max(axis=2, keepdims=True))
    return powers / powers.sum(axis=2, keepdims=True)


def queries_and_keys(w: Arrays, x: np.ndarray, H: int) -> tuple[np.ndarray, np.ndarray]:
    q, k = ((x @ w[f"W_{part}.weight"].T).reshape(len(x), H, -1) for part in ("query", "key"))
    return q.swapaxes(0, 1), k.swapaxes(0, 1)


def linear(w: Arrays, x: np.ndarray, s: np.ndarray) -> np.ndarray:
    """Return the weights from running sums, one query at a time."""
    q, k = (np.where(y > 0, y + 1, np.exp(y)) for y in queries_and_keys(w, x, len(s)))
    weights = np.zeros_like(s)
    for h, i in np.ndindex(len(s), len(x)):
        weights[h, i, : i + 1] = (
            k[h, : i + 1] @ q[h, i] / (k[h, : i + 1].sum(axis=0) @ q[h, i] + 1e-6)
        )
    return weights


def gates_of(w: Arrays, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return beta and log alpha [T, H]; alpha is 1 in a layer that forgets nothing."""
    beta = sigmoid(x @ w["W_beta.weight"].T)
    if "W_decay.weight" not in w:
        return beta, np.zeros_like(beta)
    step = np.log1p(np.exp(x @ w["W_decay.weight"].T + w["decay_bias"]))
    return beta, -np.exp(w["log_rate"]) * step


def delta_rule(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, beta: np.ndarray, log_alpha: np.ndarray
) -> np.ndarray:
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


def path(w: Arrays, x: np.ndarray, s: np.ndarray) -> np.ndarray:
    """Apply the reflections between query and key to each query, one after the other."""
    H, beta, s = len(s), 2 * sigmoid(x @ w["W_beta.weight"].T), s.copy()
    q, k = queries_and_keys(w, x, H)
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


def selective(w: Arrays, x: np.ndarray, s: np.ndarray) -> np.ndarray:
    """Add up the first head's selections by the tokens between a key and a query, one by one."""
    q, k = queries_and_keys(w, x, len(s))
    selected, s = np.maximum(q[0] @ k[0].T / np.sqrt(q.shape[2]), 0), s.copy()
    for i, j in zip(*np.tril_indices(len(x)), strict=True):
        s[:, i, j] -= selected[j + 1 : i, j].sum() if j else 0
    return softmax_of(s)


REFERENCES: dict[str, dict[str, Reference]] = {
    "logits": {
        "temperature": lambda w, x, s: np.exp(w["log_temperature"])[:, None, None] * s,
        "talking": lambda w, x, s: np.tensordot(w["talk_logits"], s, 1),
        "self_mask": lambda w, x, s: np.where(np.eye(len(x), dtype=bool), -1e9, s),
        "forget": forgotten,
    },
    "mixing": {
        "uniform": lambda w, x, s: (s > -np.inf) / (s > -np.inf).sum(axis=2, keepdims=True),
        "off_by_one": lambda w, x, s: with_extra(s, np.zeros(())),
        "sink": lambda w, x, s: with_extra(s, w["sink"][:, None, None]),
        "talking": lambda w, x, s: np.tensordot(w["talk_weights"], softmax_of(s), 1),
        "sigmoid": lambda w, x, s: sigmoid(s + w["weight_bias"][:, None, None]),
        "softpick": softpick,
        "linear": linear,
        "path": path,
        "selective": selective,
    },
}
"""What each hook of the package computes, by its map and its name."""


def reference(c: AttentionConfig, w: Arrays) -> np.ndarray:
    """The layer's output, [B, T, C]."""
    x = np.array(text(), np.float64)
    return np.stack([output(c, w, x[i], heads_of(c, w, x[i], i)) for i in range(len(x))])


def heads_of(c: AttentionConfig, w: Arrays, x: np.ndarray, i: int) -> np.ndarray:
    """The weighted sums of values of text i, [H, T, D]."""
    q, k, v = queries_keys_values(c, w, x, i)
    if c.short_conv != "none":
        parts = zip((q, k, v), ("query", "key", "value"), strict=True)
        q, k, v = (convolved(y, w[f"conv_{part}"], c.short_conv) for y, part in parts)
    if "W_beta.weight" in w and c.mixing != "path":
        beta, log_alpha = gates_of(w, x)
        beta = 2 * beta if c.mixing == "signed_delta" else beta
        rows = zip(q, k, v, beta.T, log_alpha.T, strict=True)
        return np.stack([delta_rule(*head) for head in rows])
    s = c.scale * q @ np.repeat(k, len(q) // len(k), 0).swapaxes(1, 2)
    for hook in c.choices("logits"):
        s = REFERENCES["logits"][hook.name](w, x, s)
    distances = np.subtract.outer(np.arange(T), np.arange(T))
    if c.position == "alibi":
        slopes = np.repeat(2.0 ** -np.array([2, 4, 6, 8]), len(q) // H)
        s = s - slopes[:, None, None] * distances
    seen = (distances >= 0) & (distances < (c.window or T))
    weigh = REFERENCES["mixing"].get(c.mixing, lambda w, x, s: softmax_of(s))
    return weigh(w, x, np.where(seen, s, -np.inf)) @ np.repeat(v, len(q) // len(v), 0)


def queries_keys_values(c: AttentionConfig, w: Arrays, x: np.ndarray, i: int) -> list[np.ndarray]:
    def split(y: np.ndarray, heads: int = H) -> np.ndarray:
        return y.reshape(T, heads, -1).swapaxes(0, 1)

    def through(name: str, y: np.ndarray = x, heads: int = H) -> np.ndarray:
        return split(y @ w[f"{name}.weight"].T, heads)

    if c.score == "latent":
        latent = x @ w["W_latent.weight"].T
        return [through("W_query"), through("W_up_key", latent), through("W_up_value", latent)]
    if c.score == "off":
        q = k = np.zeros((H, T, 1))
    elif c.score == "nonlinear_query":
        q, k = split(nonlinear(x, w)), through("W_key")
    else:
        q = through("W_query", heads=2 * H if c.score == "paired" else H)
        k = q if c.score == "shared" else through("W_key")
    v = through("W_value")
    if c.value == "residual":
        v = w["value_mix"][0] * FIRST_VALUES[i] + w["value_mix"][1] * v
    return [q, k, v]


def nonlinear(x: np.ndarray, w: Arrays) -> np.ndarray:
    """Compute the query: the mean of x and a narrow network's output."""
    y = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * w["norm_in.weight"]
    y = y @ w["W_down.weight"].T
    y = y / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
    y = y @ w["W_up.weight"].T
    y = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + 1e-5)
    return (x + y * w["norm_out.weight"]) / 2


def convolved(y: np.ndarray, c: np.ndarray, kind: str) -> np.ndarray:
    """Convolve each column of y [H, T, D], one token and one earlier token at a time."""
    mixed = np.zeros_like(y)
    for t in range(T):
        for back in range(min(len(c), t + 1)):
            mixed[:, t] += c[back] * y[:, t - back]
    return mixed * sigmoid(mixed) if kind == "silu" else mixed


def output(c: AttentionConfig, w: Arrays, x: np.ndarray, heads: np.ndarray) -> np.ndarray:
    """The output of one text from its heads, [T, C]."""
    if c.output == "differential":
        heads = heads[::2] - sigmoid(x @ w["W_lambda.weight"].T).T[..., None] * heads[1::2]
    if c.output == "exclusive":
        v = (x @ w["W_value.weight"].T).reshape(T, H, -1).swapaxes(0, 1)
        heads = heads - (heads * v).sum(-1, keepdims=True) * v / (v**2).sum(-1, keepdims=True)
    if c.output == "head_gated":
        heads = heads * sigmoid(x @ w["W_gate.weight"].T).T[..., None]
    if c.output in ("normed", "normed_gated"):
        heads = heads / np.sqrt((heads**2).mean(-1)[..., None] + 1e-5 * C / H) * w["head_gain"]
    y = heads.swapaxes(0, 1).reshape(T, -1)
    if c.output in ("gated", "normed_gated"):
        gate = x @ w["W_gate.weight"].T
        y = y * sigmoid(gate) * (gate if c.output == "normed_gated" else 1)
    return y @ w["out_proj.weight"].T + w["out_proj.bias"]


@pytest.mark.parametrize("case", CASES)
def test_outputs_and_the_gradient_of_every_weight_are_the_reference_s(case):
    module = layer(case)
    np.testing.assert_allclose(run(module), reference(module.config, numbers(module)), 1e-6, 3e-5)
    check_gradients(module, run, lambda w: reference(module.config, w))


@pytest.mark.parametrize("n_heads", [1, 2, 4, 8])
def test_slopes_of_a_range_do_not_depend_on_the_number_of_heads(n_heads):
    slopes = alibi_slopes(n_heads)
    assert slopes[0] == 2**-2
    assert n_heads == 1 or slopes[-1] == 2**-8
