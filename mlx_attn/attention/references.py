"""The hooks on scores and weights in NumPy, written apart from them, for `verify` to compare with."""

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

Hook = Callable[[dict[str, Array], Array, Array], Array]
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


def softmax(s: Array) -> Array:
    """Return e^s_ij / sum_j e^s_ij."""
    powers = np.exp(s - s.max(axis=2, keepdims=True))
    return powers / powers.sum(axis=2, keepdims=True)


HOOKS: dict[str, dict[str, Hook]] = {
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
        "talking": lambda w, x, s: np.tensordot(w["talk_weights"], softmax(s), 1),
        "sigmoid": lambda w, x, s: 1 / (1 + np.exp(-s - w["weight_bias"][:, None, None])),
    },
}
"""What each hook of the package computes, by its map and its name."""
