"""Check each operation of a GPT against NumPy in float64.

The shapes come from the presets: their widths of heads and of the residual stream, decoding with
one query against more than a thousand keys, and heads that share keys. Checks call the functions of
the package through the same names as the package, so they verify the code that runs.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_unflatten

from mlx_attn.arrays import named_arrays
from mlx_attn.attention import attention, config
from mlx_attn.attention.cache import Places
from mlx_attn.attention.config import VARIANTS, AttentionConfig
from mlx_attn.attention.references import REFERENCES, softmax_of
from mlx_attn.machine import attention_kernels as kernels
from mlx_attn.model import gpt
from mlx_attn.model.config import PRESETS, GPTConfig, config_from
from mlx_attn.training import batches
from mlx_attn.verify import reference
from mlx_attn.verify.reference import Array, Numbers
from mlx_attn.verify.tolerance import (
    FLOAT32,
    Comparison,
    Rounding,
    as_mlx,
    as_numpy,
    compared,
    product_error,
)

Comparisons = Iterator[Comparison]
LONG = 1_100
"""Numbers of keys in decoding: some Metal kernels change at 1,024, others at 4,096."""
LONGER = 4_100
_TOKENS = 40
ROTATED = 1e-3
"""Tolerance of RoPE: Metal computes sines of large angles fast but less exactly."""


def _of_presets(size: Callable[[GPTConfig], int]) -> list[int]:
    models = (config_from({**row.model, "vocab_size": row.vocab_size}) for row in PRESETS.values())
    return sorted({size(model) for model in models})


HEAD_WIDTHS = _of_presets(lambda model: model.head_dim)
WIDTHS = _of_presets(lambda model: model.emb_dim)
VOCABULARIES = _of_presets(lambda model: model.vocab_size)


def products(rounding: Rounding) -> Comparisons:
    """Compare products: their rounding, then each preset width by rows, one token, and batched."""
    note = f"rounds like {rounding.name}"
    yield Comparison("float32 against float64", product_error(), rounding.most, note)
    numbers = Numbers(2)
    for C in WIDTHS:
        W = numbers(4 * C, C)
        for T in (1, 64):
            x = numbers(T, C)
            case = f"[{T}, {C}] times [{C}, {4 * C}]"
            yield _product(case, x, W.T, rounding)
        yield _product(f"[{4 * C}, 64] times [64, {C}]", numbers(64, 4 * C).T, x, rounding)
    large = numbers(64, 64) * 2.0**20  # beyond the range of float16
    yield _product("large numbers", large, numbers(64, 64), rounding)
    yield _product("by heads", numbers(2, 4, 64, 32), numbers(2, 4, 32, 64), rounding)


def _product(case: str, a: Array, b: Array, rounding: Rounding) -> Comparison:
    return compared(case, as_mlx(a) @ as_mlx(b), a @ b, 3 * rounding.most)


# Attention.


@dataclass(frozen=True, slots=True)
class Shape:
    """Shapes of queries, keys and values, and the other settings of the layer."""

    heads: int
    key_heads: int
    value_heads: int
    width: int  # of queries and keys
    value_width: int
    queries: int
    keys: int
    choices: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        shared = f", {self.key_heads} of keys" if self.key_heads < self.heads else ""
        values = f", values of {self.value_width}" if self.value_width != self.width else ""
        extra = "".join(f", {key} {value}" for key, value in self.choices.items())
        heads = f"{self.heads} heads of {self.width}{shared}{values}"
        return f"{heads}, {self.queries} queries, {self.keys} keys{extra}"


def _shapes() -> Iterator[Shape]:
    for D in HEAD_WIDTHS:
        plain = partial(Shape, 4, 4, 4, D, D)
        yield from (plain(T, T) for T in (8, _TOKENS))
        yield from (plain(_TOKENS, _TOKENS, extra) for extra in _EXTRAS)
        yield from (plain(T, LONG) for T in (1, 8, 16))
        yield from (plain(1, LONG, extra) for extra in _EXTRAS)
        for key_heads, keys in ((2, LONG), (1, LONG), (1, LONGER)):
            grouped = partial(Shape, 4, key_heads, key_heads, D, D)
            yield from (grouped(_TOKENS, _TOKENS), grouped(1, keys))
    for C in WIDTHS:  # merged scores: x is the only key, and the only value in the second form
        yield from (Shape(2, 1, 2, C, 32, T, keys) for T, keys in ((40, 40), (1, LONG)))
        yield from (Shape(2, 1, 1, C, C, T, keys) for T, keys in ((40, 40), (1, LONG)))


_EXTRAS = ({"position": "alibi"}, {"window": 16})


def _last(q: mx.array, k: mx.array) -> Places:
    """Return the positions of queries if the last query is at the last key."""
    return Places.of_text(k.shape[2], k.shape[2] - q.shape[2])


KERNELS: dict[str, Callable[..., mx.array]] = {
    "fused": lambda a, q, k, v: kernels.fused_attention(
        q, k, v, a.config.scale, a.bias(_last(q, k))
    ),
    "written out": lambda a, q, k, v: attention.explicit_attention(a, q, k, v, _last(q, k)),
    "as picked": lambda a, q, k, v: attention.fastest_attention(a, q, k, v, _last(q, k)),
}


def attention_kernels(rounding: Rounding) -> Comparisons:
    """Compare MLX's attention, the explicit form and the package's choice, with gradients."""
    numbers = Numbers(3)
    for shape in _shapes():
        layer = attention.Attention(
            AttentionConfig(
                d_in=1,
                d_out=1,
                context_length=LONGER,
                n_heads=shape.heads,
                head_dim=shape.width,
                **shape.choices,
            )
        )
        q = numbers(2, shape.heads, shape.queries, shape.width) * 4
        k = numbers(2, shape.key_heads, shape.keys, shape.width)
        v = numbers(2, shape.value_heads, shape.keys, shape.value_width)
        yield from _kernels(shape, layer, (q, k, v), numbers, rounding)


def _kernels(
    shape: Shape,
    layer: attention.Attention,
    inputs: tuple[Array, ...],
    numbers: Numbers,
    rounding: Rounding,
) -> Comparisons:
    """Yield every kernel that takes the shape, with a gradient if T_q equals T_k."""
    c = layer.config
    slopes = c.slopes() if c.position == "alibi" else ()
    q, k, v = inputs
    y, gradient = reference.attention(q, k, v, c.scale, c.window, slopes)
    weights = numbers(*y.shape)
    arrays = [as_mlx(array) for array in inputs]
    for name, kernel in KERNELS.items():
        if name == "fused" and shape.key_heads != shape.value_heads:
            continue
        layer.train(shape.queries == shape.keys)
        yield compared(f"{name}: {shape}", kernel(layer, *arrays), y, rounding.tolerance)
        refused = name == "fused" and kernels.refuses_gradient(shape.width, shape.queries)
        if shape.queries != shape.keys or refused:
            continue
        of_inputs = mx.grad(_weighted(partial(kernel, layer), weights), argnums=(0, 1, 2))
        pairs = zip("qkv", of_inputs(*arrays), gradient(weights), strict=True)
        for letter, found, expected in pairs:
            yield compared(
                f"{name}, gradient of {letter}: {shape}", found, expected, rounding.tolerance
            )


def _weighted(function: Callable[..., mx.array], weights: Array) -> Callable[..., mx.array]:
    """Return a scalar whose gradient is the function's gradient weighted by `weights`."""
    factors = as_mlx(weights)
    return lambda *arguments: (function(*arguments) * factors).sum()


def order_of_heads(rounding: Rounding) -> Comparisons:
    """Compare a layer with its heads, each computed from only its own rows and columns."""
    C, H, D, numbers = 24, 4, 6, Numbers(4)
    for kv in (4, 2, 1):
        layer = attention.MultiHeadAttention(C, C, 12, 0.0, H, n_kv_heads=kv, out_bias=False)
        rows = {"W_query": C, "W_key": kv * D, "W_value": kv * D, "out_proj": C}
        weights = {name: numbers(count, C) for name, count in rows.items()}
        layer.update({name: {"weight": as_mlx(array)} for name, array in weights.items()})
        for T in (12, 1):
            x = numbers(1, T, C)
            heads = (_head_alone(weights, x[0], h, h * kv // H, D) for h in range(H))
            y = np.sum([*heads], axis=0)
            case = f"{H} heads, {kv} of keys, {T} tokens"
            yield compared(case, layer(as_mlx(x))[0], y, rounding.tolerance)


def _head_alone(weights: dict[str, Array], x: Array, h: int, shared: int, D: int) -> Array:
    """Return the part of the output that head h adds, with keys and values of head `shared`."""
    own, keys = slice(h * D, (h + 1) * D), slice(shared * D, (shared + 1) * D)
    q, k = x @ weights["W_query"][own].T, x @ weights["W_key"][keys].T
    bias = np.where(reference.is_seen(len(x), len(x)), 0.0, -np.inf)
    y, _ = reference.one_head(q, k, x @ weights["W_value"][keys].T, D**-0.5, bias)
    return y @ weights["out_proj"][:, own].T


def causality(rounding: Rounding) -> Comparisons:
    """Compare the bits of earlier outputs while later tokens change: they must stay the same."""
    T, changed = 24, 13
    sizes: dict[str, Any] = {"vocab_size": 50, "context_length": T, "emb_dim": 32, "n_heads": 2}
    forms = {name: {**row.settings} for name, row in VARIANTS.items() if row.group != "yours"}
    more = {f"position {word}": {"position": word} for word in config.POSITIONS}
    tokens = Numbers(5).tokens(50, 2, T)
    others = np.concatenate([tokens[:, :changed], (tokens[:, changed:] + 7) % 50], axis=1)
    for name, settings in (forms | more).items():
        model = gpt.GPT(config_from({**sizes, "n_layers": 2, **settings}))
        for mode in ("training", "evaluation"):
            model.train(mode == "training")
            y, after = (as_numpy(model(as_mlx(t))[:, :changed]) for t in (tokens, others))
            same = np.array_equal(y, after, equal_nan=True)
            yield Comparison(f"{name}, in {mode}", float(not same), 0.0)
    for window in (0, 5):
        layer = attention.CausalAttention(8, 8, T, 0.0, window=window)
        weights = as_numpy(layer.weights(mx.ones((1, T, 8))))
        outside = float(np.abs(weights * ~reference.is_seen(T, T, window)).max())
        yield Comparison(f"weights outside of the mask, window {window}", outside, 0.0)


# Hooks on the scores and on the weights.


def hooks(rounding: Rounding) -> Comparisons:
    """Compare the attention weights of a layer with each hook on its scores or weights."""
    numbers, C, H, T = Numbers(16), 24, 4, 12
    for name, rows in REFERENCES.items():
        for choice, hook in rows.items():
            chosen: dict[str, Any] = {name: choice}
            layer = attention.MultiHeadAttention(C, C, T, 0.0, H, **chosen)
            w = {key: numbers(*array.shape) for key, array in named_arrays(layer).items()}
            layer.update(tree_unflatten([(key, as_mlx(array)) for key, array in w.items()]))
            x = numbers(1, T, C)
            q, k = (reference.split(x @ w[f"W_{part}.weight"].T, H)[0] for part in ("query", "key"))
            s = layer.config.scale * q @ k.swapaxes(1, 2)
            s = hook(w, x[0], s) if name == "logits" else s
            s = np.where(reference.is_seen(T, T), s, -np.inf)
            y = hook(w, x[0], s) if name == "mixing" else softmax_of(s)
            case = f"{name} {choice}"
            yield compared(case, layer.weights(as_mlx(x))[0], y, rounding.tolerance)


# Operations outside attention.


def positions(rounding: Rounding) -> Comparisons:
    """Compare RoPE's rotation and ALiBi's bias; angles are float32, and grow with the position."""
    numbers = Numbers(6)
    for width in sorted({*HEAD_WIDTHS, *WIDTHS}):
        for first in (0, 5, LONG):
            y = numbers(1, 2, 9, width)
            found = attention.rope(as_mlx(y), first)
            case = f"RoPE, heads of {width}, from position {first}"
            yield compared(case, found, reference.rope(y, first), ROTATED)
    slopes = (0.25, 2.0**-8)
    for T_q, T_k in ((_TOKENS, _TOKENS), (1, LONG)):
        bias = np.stack([-slope * reference.distance(T_q, T_k) for slope in slopes])
        places = Places.of_text(T_k, T_k - T_q)
        found = attention.alibi_bias(mx.array(slopes), places.queries, places.keys)
        yield compared(f"ALiBi, {T_q} queries, {T_k} keys", found, bias, FLOAT32.tolerance)


def _with_gradient(
    case: str,
    function: Callable[..., mx.array],
    x: Array,
    expected: tuple[Array, reference.Gradient],
    weights: Array,
) -> Comparisons:
    """Compare a function of one array, and its gradient weighted by `weights`."""
    y, gradient = expected
    yield compared(case, function(as_mlx(x)), y, FLOAT32.tolerance)
    found = mx.grad(_weighted(function, weights))(as_mlx(x))
    yield compared(f"{case}, gradient", found, gradient(weights), FLOAT32.tolerance)


def norms(rounding: Rounding) -> Comparisons:
    """Compare LayerNorm, RMSNorm and QK-norm, with gradients, on few and on many numbers."""
    numbers = Numbers(7)
    kinds = (("LayerNorm", gpt.LayerNorm, FLOAT32.tolerance), ("RMSNorm", gpt.RMSNorm, 1e-6))
    for C in WIDTHS:
        for name, kind, eps in kinds:
            layer = kind(C, eps=eps)
            w, b = numbers(C), numbers(C) * (name == "LayerNorm")
            layer.update({"weight": as_mlx(w)} | ({"bias": as_mlx(b)} if "bias" in layer else {}))
            for T in (1, _TOKENS):
                x, R = numbers(2, T, C) + 0.5, numbers(2, T, C)
                y, gradient = reference.normalized(x, eps, name == "LayerNorm")
                case, found = f"{name} of {C}, {T} tokens", layer.eval()(as_mlx(x))
                yield compared(f"{case}, in evaluation", found, y * w + b, FLOAT32.tolerance)
                found = mx.grad(_weighted(layer.train(), R))(as_mlx(x))
                yield compared(f"{case}, gradient", found, gradient(R * w), FLOAT32.tolerance)
    x = numbers(1, 2, _TOKENS, 64)
    y, _ = reference.normalized(x, 1e-6, False)
    yield compared("QK-norm", attention.unit_rms(as_mlx(x)), y, FLOAT32.tolerance)


def activations(rounding: Rounding) -> Comparisons:
    """Compare GELU and squared ReLU, with gradients, on few and on many numbers."""
    numbers = Numbers(8)
    for name, layer in gpt.ACTIVATION_LAYERS.items():
        for size in (64, 8192):
            x, R = numbers(size) * 6, numbers(size)
            case = f"{name} of {size} numbers"
            yield from _with_gradient(case, layer(), x, reference.activation(x, name), R)


def cross_entropy(rounding: Rounding) -> Comparisons:
    """Compare each token's loss and its gradient, for every vocabulary of the presets."""
    numbers = Numbers(9)
    for V in VOCABULARIES:
        logits, windows = numbers(2, 8, V) * 20, numbers.tokens(V, 2, 9)
        expected, R = reference.cross_entropy(logits, windows[:, 1:]), numbers(2, 8)

        def loss(given: mx.array, windows: Array = windows) -> mx.array:
            return batches.window_losses(lambda tokens: given, as_mlx(windows))

        yield from _with_gradient(f"vocabulary of {V}", loss, logits, expected, R)
