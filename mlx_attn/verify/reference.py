"""Attention and a small GPT in NumPy with float64, without MLX.

Follows the book's definitions, and shares no code with the functions that it checks.
It has no backward pass: a gradient in a direction is the slope of the function along it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from jaxtyping import Bool, Float, Integer
from scipy.special import log_softmax, softmax

from mlx_attn.model.config import GPTConfig

Array = Float[np.ndarray, "..."]
ROPE_BASE = 10_000.0
_STEP = 1e-6


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


def direction(x: Array) -> Array:
    """Return the random direction in which gradients at x are compared."""
    return Numbers(0)(*x.shape)


def slope(function: Callable[[Array], float], x: Array) -> float:
    """Return the derivative of a function at x along `direction`, by central differences."""
    step = _STEP * direction(x)
    return (function(x + step) - function(x - step)) / (2 * _STEP)


# Attention.


def distance(T_q: int, T_k: int) -> Integer[np.ndarray, "T_q T_k"]:
    """Return the distance in tokens from key j to query i; the last query is at the last key."""
    return np.subtract.outer(np.arange(T_k - T_q, T_k), np.arange(T_k))


def is_seen(T_q: int, T_k: int, window: int = 0) -> Bool[np.ndarray, "T_q T_k"]:
    """Return True if query i sees key j: no later key, and with a window only the last ones."""
    behind = distance(T_q, T_k)
    return (behind >= 0) & (behind < (window or T_k))


def attention(
    q: Float[np.ndarray, "B H T_q K"],
    k: Float[np.ndarray, "B key_heads T_k K"],
    v: Float[np.ndarray, "B value_heads T_k D"],
    scale: float,
    window: int = 0,
    slopes: tuple[float, ...] = (),
) -> Float[np.ndarray, "B H T_q D"]:
    """Return softmax(scale q k^T + bias) v; consecutive queries share a head of keys and values."""
    H, T_q, T_k = *q.shape[1:3], k.shape[2]
    k, v = (np.repeat(y, H // y.shape[1], axis=1) for y in (k, v))
    scores = scale * q @ k.swapaxes(2, 3)
    if slopes:
        scores -= np.array(slopes)[:, None, None] * distance(T_q, T_k)
    return softmax(np.where(is_seen(T_q, T_k, window), scores, -np.inf), axis=-1) @ v


def split(y: Float[np.ndarray, "B T width"], heads: int) -> Float[np.ndarray, "B H T D"]:
    """Split the columns into heads: head h has columns h D..(h+1) D."""
    return np.stack(np.split(y, heads, axis=2), axis=1)


def rope(y: Array, first: int) -> Array:
    """Rotate coordinates c and c + D/2 by the angle position / 10000^(2 c / D)."""
    half = y.shape[-1] // 2
    rates = ROPE_BASE ** (-np.arange(half) / half)
    angles = np.outer(np.arange(first, first + y.shape[-2]), rates)
    a, b = y[..., :half], y[..., half:]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


# Operations outside attention.


def normalized(x: Array, eps: float, centred: bool) -> Array:
    """Divide each row by its root mean square; first subtract its mean if `centred`."""
    if centred:
        x = x - x.mean(axis=-1, keepdims=True)
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps)


def activation(x: Array, name: str) -> Array:
    """Return GELU in the tanh form (arXiv:1606.08415), or squared ReLU."""
    if name == "relu2":
        return np.maximum(x, 0) ** 2
    return x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x * x * x))) / 2


def cross_entropy(logits: Array, targets: Integer[np.ndarray, "..."]) -> Array:
    """Return the loss log sum e^logits - logits[target] of each token."""
    return -np.take_along_axis(log_softmax(logits, axis=-1), targets[..., None], axis=-1)[..., 0]


_layer = cache(GPTConfig.attention)


@dataclass(frozen=True)
class ReferenceGPT:
    """A GPT of the standard form, which reads the names and shapes of a checkpoint."""

    config: GPTConfig
    weights: Mapping[str, Array]

    def loss(self, windows: Integer[np.ndarray, "B T1"]) -> float:
        """Return the mean loss of the windows in nats per token."""
        return float(cross_entropy(self.logits(windows[:, :-1]), windows[:, 1:]).mean())

    def loss_with(self, windows: Integer[np.ndarray, "B T1"], name: str, weight: Array) -> float:
        """Return the loss with another array as the weight of this name."""
        return replace(self, weights={**self.weights, name: weight}).loss(windows)

    def logits(self, tokens: Integer[np.ndarray, "B T"]) -> Float[np.ndarray, "B T V"]:
        """Return the logits of the next token after each."""
        x = self.weights["tok_emb.weight"][tokens]
        if self.config.position == "learned":
            x = x + self.weights["pos_emb.weight"][: tokens.shape[1]]
        keys_and_values: tuple[Array, ...] = ()
        for i in range(self.config.n_layers):
            block = f"trf_blocks.{i}"
            y, keys_and_values = self._attention(
                i, self._norm(f"{block}.norm1", x), keys_and_values
            )
            x = x + y
            hidden = self._linear(f"{block}.ff.layers.0", self._norm(f"{block}.norm2", x))
            x = x + self._linear(f"{block}.ff.layers.2", activation(hidden, self.config.activation))
        head = "tok_emb" if self.config.tied_head else "out_head"
        return self._linear(head, self._norm("final_norm", x))

    def _linear(self, name: str, x: Array) -> Array:
        return x @ self.weights[f"{name}.weight"].T + self.weights.get(f"{name}.bias", 0.0)

    def _norm(self, name: str, x: Array) -> Array:
        layernorm = self.config.norm == "layernorm"
        y = normalized(x, 1e-5 if layernorm else 1e-6, layernorm)
        return y * self.weights[f"{name}.weight"] + self.weights.get(f"{name}.bias", 0.0)

    def _attention(
        self, layer: int, x: Array, earlier: tuple[Array, ...]
    ) -> tuple[Array, tuple[Array, ...]]:
        """Return the output, and the keys and values, which a layer after this one may read."""
        c, name = _layer(self.config, layer), f"trf_blocks.{layer}.att"
        q = self._positioned(f"{name}.W_query", x, c.n_heads)
        if c.cross_layer == "reader":
            k, v = earlier
        else:
            k = self._positioned(f"{name}.W_key", x, c.n_kv_heads)
            v = split(self._linear(f"{name}.W_value", x), c.n_kv_heads)
        slopes = c.slopes() if c.position == "alibi" else ()
        heads = attention(q, k, v, c.scale, c.window, slopes)
        merged = np.concatenate([*heads.swapaxes(0, 1)], axis=2)
        return self._linear(f"{name}.out_proj", merged), (k, v)

    def _positioned(self, name: str, x: Array, heads: int) -> Float[np.ndarray, "B H T D"]:
        """Return queries or keys, normalised and rotated if the model is configured so."""
        y = split(self._linear(name, x), heads)
        if self.config.qk_norm:
            y = normalized(y, 1e-6, centred=False)
        return rope(y, 0) if self.config.position == "rope" else y
