"""Attention and a small GPT in NumPy with float64, forward and backward, without MLX.

Follows the book's definitions, one head at a time, and shares no code with the functions it checks.
A function with a gradient returns its result and a backward function, which maps the gradient of
the result to the gradients of its inputs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Integer

from mlx_attn.model.config import GPTConfig

Array = Float[np.ndarray, "..."]
Gradient = Callable[[Array], Array]
ROPE_BASE = 10_000.0


class Numbers:
    """Draw numbers between -1 and 1 that float32 represents exactly, equal on every machine."""

    def __init__(self, seed: int):
        self._generator = np.random.Generator(np.random.Philox(key=seed))

    def __call__(self, *shape: int) -> Array:
        """Return the next numbers in this shape."""
        return (2 * self._generator.random(shape) - 1).astype(np.float32).astype(np.float64)

    def tokens(self, vocab_size: int, *shape: int) -> Integer[np.ndarray, "..."]:
        """Return token ids."""
        return np.floor(self._generator.random(shape) * vocab_size).astype(np.int64)


# Attention.


def distance(T_q: int, T_k: int) -> Integer[np.ndarray, "T_q T_k"]:
    """Return the distance in tokens from key j to query i; the last query is at the last key."""
    return np.subtract.outer(np.arange(T_k - T_q, T_k), np.arange(T_k))


def is_seen(T_q: int, T_k: int, window: int = 0) -> Bool[np.ndarray, "T_q T_k"]:
    """Return True if query i sees key j: no later key, and with a window only the last ones."""
    behind = distance(T_q, T_k)
    return (behind >= 0) & (behind < (window or T_k))


def one_head(
    q: Float[np.ndarray, "T_q K"],
    k: Float[np.ndarray, "T_k K"],
    v: Float[np.ndarray, "T_k D"],
    scale: float,
    bias: Float[np.ndarray, "T_q T_k"],
) -> tuple[Array, Callable[[Array], tuple[Array, Array, Array]]]:
    """Return softmax(scale q k^T + bias) v; masked scores have a bias of minus infinity."""
    scores = scale * (q @ k.T) + bias
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights = powers / powers.sum(axis=1, keepdims=True)

    def gradient(dy: Array) -> tuple[Array, Array, Array]:
        dweights = dy @ v.T
        dscores = weights * (dweights - (weights * dweights).sum(axis=1, keepdims=True))
        return scale * dscores @ k, scale * dscores.T @ q, weights.T @ dy

    return weights @ v, gradient


def attention(
    q: Float[np.ndarray, "B H T_q K"],
    k: Float[np.ndarray, "B key_heads T_k K"],
    v: Float[np.ndarray, "B value_heads T_k D"],
    scale: float,
    window: int = 0,
    slopes: tuple[float, ...] = (),
) -> tuple[Array, Callable[[Array], tuple[Array, Array, Array]]]:
    """Compute every head separately; consecutive query heads share a key head and a value head."""
    B, H, T_q, _ = q.shape
    seen, behind = is_seen(T_q, k.shape[2], window), distance(T_q, k.shape[2])
    y = np.empty((B, H, T_q, v.shape[3]))
    places, gradients = [], []
    for b, h in np.ndindex(B, H):
        i, j = (b, h * k.shape[1] // H), (b, h * v.shape[1] // H)
        bias = np.where(seen, -slopes[h] * behind if slopes else 0.0, -np.inf)
        y[b, h], gradient = one_head(q[b, h], k[i], v[j], scale, bias)
        places.append(((b, h), i, j))
        gradients.append(gradient)

    def of_all(dy: Array) -> tuple[Array, Array, Array]:
        dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
        for (at, i, j), gradient in zip(places, gradients, strict=True):
            for total, place, part in zip((dq, dk, dv), (at, i, j), gradient(dy[at]), strict=True):
                total[place] += part
        return dq, dk, dv

    return y, of_all


def split(y: Float[np.ndarray, "B T width"], heads: int) -> Float[np.ndarray, "B H T D"]:
    """Split the columns into heads: head h has columns h D..(h+1) D."""
    return np.stack(np.split(y, heads, axis=2), axis=1)


def merge(y: Float[np.ndarray, "B H T D"]) -> Float[np.ndarray, "B T width"]:
    """Concatenate the heads."""
    return np.concatenate([y[:, h] for h in range(y.shape[1])], axis=2)


def rope(y: Array, first: int, back: bool = False) -> Array:
    """Rotate coordinates c and c + D/2 by the angle position / 10000^(2 c / D)."""
    half = y.shape[-1] // 2
    rates = ROPE_BASE ** (-np.arange(half) / half)
    angles = np.outer(np.arange(first, first + y.shape[-2]), rates) * (-1 if back else 1)
    a, b = y[..., :half], y[..., half:]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


# Operations outside attention.


def normalized(x: Array, eps: float, centred: bool) -> tuple[Array, Gradient]:
    """Divide each row by its root mean square; first subtract its mean if `centred`."""
    moved = x - x.mean(axis=-1, keepdims=True) if centred else x
    size = np.sqrt((moved**2).mean(axis=-1, keepdims=True) + eps)
    y = moved / size

    def gradient(dy: Array) -> Array:
        dx = dy - y * (dy * y).mean(axis=-1, keepdims=True)
        return (dx - dx.mean(axis=-1, keepdims=True) if centred else dx) / size

    return y, gradient


def activation(x: Array, name: str) -> tuple[Array, Gradient]:
    """Return GELU in the tanh form (arXiv:1606.08415), or squared ReLU."""
    if name == "relu2":
        positive = np.maximum(x, 0)
        return positive**2, lambda dy: 2 * dy * positive
    root = np.sqrt(2 / np.pi)
    bent = np.tanh(root * (x + 0.044715 * x**3))
    slope = (1 + bent) / 2 + x * (1 - bent**2) / 2 * root * (1 + 3 * 0.044715 * x**2)
    return x * (1 + bent) / 2, lambda dy: dy * slope


def cross_entropy(logits: Array, targets: Integer[np.ndarray, "..."]) -> tuple[Array, Gradient]:
    """Return the loss log sum e^logits - logits[target] of each token."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    log_sum = np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    right = np.arange(logits.shape[-1]) == targets[..., None]
    losses = (log_sum - np.where(right, shifted, 0).sum(axis=-1, keepdims=True))[..., 0]
    return losses, lambda dy: (np.exp(shifted - log_sum) - right) * dy[..., None]


@dataclass
class ReferenceGPT:
    """A GPT of the standard form, which reads the names and shapes of a checkpoint."""

    config: GPTConfig
    weights: Mapping[str, Array]
    # Of the loss, by name, after a call of `loss_and_gradients`.
    gradients: dict[str, Array] = field(default_factory=dict)

    def loss_and_gradients(self, windows: Integer[np.ndarray, "B T1"]) -> float:
        """Return the mean loss of the windows in nats per token, and store the gradients."""
        self.gradients = {name: np.zeros_like(w) for name, w in self.weights.items()}
        logits, back = self.logits(windows[:, :-1])
        losses, gradient = cross_entropy(logits, windows[:, 1:])
        back(gradient(np.full(losses.shape, 1 / losses.size)))
        return float(losses.mean())

    def logits(self, tokens: Integer[np.ndarray, "B T"]) -> tuple[Array, Gradient]:
        """Return the logits of the next token after each; the backward adds to `gradients`."""
        x, steps = self.weights["tok_emb.weight"][tokens], []
        T, learned = tokens.shape[1], self.config.position == "learned"
        if learned:
            x = x + self.weights["pos_emb.weight"][:T]
        for i in range(self.config.n_layers):
            for part, norm in ((self._attention, "norm1"), (self._feed_forward, "norm2")):
                normed, norm_back = self._norm(f"trf_blocks.{i}.{norm}", x)
                y, back = part(i, normed)
                x = x + y
                steps.append(lambda dx, nb=norm_back, b=back: dx + nb(b(dx)))
        x, norm_back = self._norm("final_norm", x)
        y, head_back = self._linear("tok_emb" if self.config.tied_head else "out_head", x)

        def gradient(dy: Array) -> Array:
            dx = norm_back(head_back(dy))
            for step in reversed(steps):
                dx = step(dx)
            np.add.at(self.gradients["tok_emb.weight"], tokens, dx)
            if learned:
                self.gradients["pos_emb.weight"][:T] += dx.sum(axis=0)
            return dx

        return y, gradient

    def _linear(self, name: str, x: Array) -> tuple[Array, Gradient]:
        weight, bias = self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias")

        def gradient(dy: Array) -> Array:
            rows = dy.reshape(-1, dy.shape[-1])
            self.gradients[f"{name}.weight"] += rows.T @ x.reshape(-1, x.shape[-1])
            if bias is not None:
                self.gradients[f"{name}.bias"] += rows.sum(axis=0)
            return dy @ weight

        return x @ weight.T + (0.0 if bias is None else bias), gradient

    def _norm(self, name: str, x: Array) -> tuple[Array, Gradient]:
        layernorm = self.config.norm == "layernorm"
        y, back = normalized(x, 1e-5 if layernorm else 1e-6, layernorm)
        weight, bias = self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias")

        def gradient(dy: Array) -> Array:
            self.gradients[f"{name}.weight"] += (dy * y).sum(axis=(0, 1))
            if bias is not None:
                self.gradients[f"{name}.bias"] += dy.sum(axis=(0, 1))
            return back(dy * weight)

        return y * weight + (0.0 if bias is None else bias), gradient

    def _feed_forward(self, layer: int, x: Array) -> tuple[Array, Gradient]:
        first, first_back = self._linear(f"trf_blocks.{layer}.ff.layers.0", x)
        bent, bent_back = activation(first, self.config.activation)
        y, second_back = self._linear(f"trf_blocks.{layer}.ff.layers.2", bent)
        return y, lambda dy: first_back(bent_back(second_back(dy)))

    def _attention(self, layer: int, x: Array) -> tuple[Array, Gradient]:
        c, name = self.config.attention(layer), f"trf_blocks.{layer}.att"
        q, q_back = self._positioned(f"{name}.W_query", x, c.n_heads)
        if c.cross_layer != "reader":
            self._shared = self._keys_and_values(name, x, c.n_kv_heads)
        k, v, gradients, kv_back = self._shared
        slopes = c.slopes() if c.position == "alibi" else ()
        heads, back = attention(q, k, v, c.scale, c.window, slopes)
        y, out_back = self._linear(f"{name}.out_proj", merge(heads))

        def gradient(dy: Array) -> Array:
            dq, dk, dv = back(split(out_back(dy), c.n_heads))
            # The layer that made the keys comes last, after all that read them.
            gradients.append((dk, dv))
            return q_back(dq) + (0.0 if c.cross_layer == "reader" else kv_back())

        return y, gradient

    def _keys_and_values(self, name: str, x: Array, heads: int) -> tuple[Array, Array, list, Any]:
        """Return keys, values, an empty list for their gradients, and the backward of its sums."""
        k, k_back = self._positioned(f"{name}.W_key", x, heads)
        v, v_back = self._linear(f"{name}.W_value", x)
        gradients: list[tuple[Array, Array]] = []

        def back() -> Array:
            dk, dv = (np.sum(parts, axis=0) for parts in zip(*gradients, strict=True))
            return k_back(dk) + v_back(merge(dv))

        return k, split(v, heads), gradients, back

    def _positioned(self, name: str, x: Array, heads: int) -> tuple[Array, Gradient]:
        """Return queries or keys, normalised and rotated if the model is configured so."""
        y, back = self._linear(name, x)
        y, norm_back = split(y, heads), lambda dy: dy
        if self.config.qk_norm:
            y, norm_back = normalized(y, 1e-6, centred=False)
        if self.config.position != "rope":
            return y, lambda dy: back(merge(norm_back(dy)))
        return rope(y, 0), lambda dy: back(merge(norm_back(rope(dy, 0, back=True))))
