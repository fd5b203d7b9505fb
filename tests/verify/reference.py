"""A small GPT of the standard form in NumPy with float64, one head at a time, without MLX.

It follows the book's definitions and shares no code with the functions that it judges.
"""

from typing import Any

import numpy as np

Array = np.ndarray


def attention(q: Array, k: Array, v: Array, c: Any) -> Array:
    """Each head's softmax(scale q k^T + bias) v; heads of queries share heads of keys."""
    H, T = len(q), q.shape[1]
    behind = np.subtract.outer(np.arange(T), np.arange(T))
    seen = (behind >= 0) & (behind < (c.window or T))
    slopes, y = c.slopes() if c.position == "alibi" else [0.0] * H, []
    for h in range(H):
        shared = h * len(k) // H
        scores = c.scale * q[h] @ k[shared].T + np.where(seen, -slopes[h] * behind, -np.inf)
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        y.append(powers / powers.sum(axis=1, keepdims=True) @ v[shared])
    return np.concatenate(y, axis=1)


def rope(y: Array) -> Array:
    """Rotate coordinates c and c + D/2 by the angle position / 10000^(2 c / D)."""
    half = y.shape[-1] // 2
    angles = np.outer(np.arange(y.shape[1]), 10_000.0 ** (-np.arange(half) / half))
    a, b, cos, sin = y[..., :half], y[..., half:], np.cos(angles), np.sin(angles)
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def normalized(x: Array, eps: float, centred: bool) -> Array:
    moved = x - x.mean(axis=-1, keepdims=True) if centred else x
    return moved / np.sqrt((moved**2).mean(axis=-1, keepdims=True) + eps)


def activation(x: Array, name: str) -> Array:
    """GELU in the tanh form (arXiv:1606.08415), or squared ReLU."""
    if name == "relu2":
        return np.maximum(x, 0) ** 2
    return x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2


class ReferenceGPT:
    """A GPT that reads the names and shapes of a checkpoint."""

    def __init__(self, config: Any, weights: dict[str, Array]):
        self.config, self.weights = config, weights

    def loss(self, windows: Array) -> float:
        """The mean loss of the windows [B, T + 1], in nats per token."""
        losses = []
        for window in windows:
            y = self._logits(window[:-1])
            y = y - y.max(axis=-1, keepdims=True)
            chosen = y[np.arange(len(y)), window[1:]]
            losses.append(np.log(np.exp(y).sum(axis=-1)) - chosen)
        return float(np.mean(losses))

    def _logits(self, tokens: Array) -> Array:
        x = self.weights["tok_emb.weight"][tokens]
        if self.config.position == "learned":
            x = x + self.weights["pos_emb.weight"][: len(tokens)]
        for i in range(self.config.n_layers):
            block = f"trf_blocks.{i}"
            x = x + self._attention(i, f"{block}.att", self._norm(f"{block}.norm1", x))
            hidden = self._linear(f"{block}.ff.layers.0", self._norm(f"{block}.norm2", x))
            x = x + self._linear(f"{block}.ff.layers.2", activation(hidden, self.config.activation))
        head = "tok_emb" if self.config.tied_head else "out_head"
        return self._linear(head, self._norm("final_norm", x))

    def _linear(self, name: str, x: Array) -> Array:
        return x @ self.weights[f"{name}.weight"].T + self.weights.get(f"{name}.bias", 0.0)

    def _norm(self, name: str, x: Array) -> Array:
        centred = self.config.norm == "layernorm"
        y = normalized(x, 1e-5 if centred else 1e-6, centred)
        return y * self.weights[f"{name}.weight"] + self.weights.get(f"{name}.bias", 0.0)

    def _attention(self, layer: int, name: str, x: Array) -> Array:
        c = self.config.attention(layer)
        q, k, v = (
            np.stack(np.split(self._linear(f"{name}.{part}", x), heads, axis=1))
            for part, heads in zip(
                ("W_query", "W_key", "W_value"),
                (c.n_heads, c.n_kv_heads, c.n_kv_heads),
                strict=True,
            )
        )
        if c.qk_norm:
            q, k = normalized(q, 1e-6, False), normalized(k, 1e-6, False)
        if c.position == "rope":
            q, k = rope(q), rope(k)
        return self._linear(f"{name}.out_proj", attention(q, k, v, c))
