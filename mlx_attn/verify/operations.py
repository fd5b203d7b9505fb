"""Check each operation of a GPT against NumPy in float64.

The shapes come from the presets: their widths of heads and of the residual stream, decoding with
one query against more than a thousand keys, and heads that share keys. Checks call the functions of
the package through the same names as the package, so they verify the code that runs.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
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
    with_gradients,
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
    factors = [
        # Beyond the range of float16, then by heads.
        (numbers(64, 64) * 2.0**20, numbers(64, 64)),
        (numbers(2, 4, 64, 32), numbers(2, 4, 32, 64)),
    ]
    for C in WIDTHS:
        W, x = numbers(4 * C, C), numbers(64, C)
        factors += [(x[:1], W.T), (x, W.T), (numbers(64, 4 * C).T, x)]
    for a, b in factors:
        case = f"{list(a.shape)} times {list(b.shape)}"
        yield compared(case, as_mlx(a) @ as_mlx(b), a @ b, 3 * rounding.most)


# Attention.


Size = tuple[int, int, int]


def _sizes() -> Iterator[tuple[Size, Size, Size, dict[str, Any]]]:
    """Yield sizes [H, T, D] of queries, keys and values, and settings of the layer."""
    in_training, one_token = (_TOKENS, _TOKENS), (1, LONG)
    for D in HEAD_WIDTHS:
        for key_heads, sizes in (
            (4, (in_training, one_token, (8, 8), (8, LONG), (16, LONG))),
            (2, (in_training, one_token)),
            (1, (in_training, one_token, (1, LONGER))),
        ):
            for T_q, T_k in sizes:
                yield (4, T_q, D), (key_heads, T_k, D), (key_heads, T_k, D), {}
        for T_q, T_k in (in_training, one_token):
            yield (4, T_q, D), (4, T_k, D), (4, T_k, D), {"position": "alibi"}
            yield (4, T_q, D), (4, T_k, D), (4, T_k, D), {"window": 16}
    for C in WIDTHS:  # merged scores: x is the only key, and the only value in the second form
        for T_q, T_k in (in_training, one_token):
            yield (2, T_q, C), (1, T_k, C), (2, T_k, 32), {}
            yield (2, T_q, C), (1, T_k, C), (1, T_k, C), {}


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
    for *sizes, settings in _sizes():
        q, k, v = (numbers(2, *size) for size in sizes)
        case = "q {}, k {}, v {}{}".format(*sizes, f", {settings}" if settings else "")
        yield from _kernels(case, (4 * q, k, v), settings, rounding.tolerance)


def _kernels(
    case: str, inputs: tuple[Array, Array, Array], settings: dict[str, Any], tolerance: float
) -> Comparisons:
    """Compare every kernel that takes the inputs, with gradients if T_q equals T_k."""
    _, H, T_q, D = inputs[0].shape
    sizes: dict[str, Any] = {"d_in": 1, "d_out": 1, "context_length": LONGER}
    c = AttentionConfig(**sizes, n_heads=H, head_dim=D, **settings)

    def expected(q: Array, k: Array, v: Array) -> Array:
        slopes = c.slopes() if c.position == "alibi" else ()
        return reference.attention(q, k, v, c.scale, c.window, slopes)

    layer, learns = attention.Attention(c), T_q == inputs[1].shape[2]
    layer.train(learns)
    functions = {f"{name}: {case}": partial(kernel, layer) for name, kernel in KERNELS.items()}
    refused = learns and kernels.refuses_gradient(D, T_q)
    if refused or inputs[1].shape[1] != inputs[2].shape[1]:
        del functions[f"fused: {case}"]
    names = "qkv" if learns else ""
    return with_gradients(functions, expected, inputs, tolerance, names)


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


# Hooks on the scores and on the weights.


def hooks(rounding: Rounding) -> Comparisons:
    """Compare the attention weights of a layer with each hook on its scores or weights."""
    numbers, C, H, T = Numbers(16), 24, 4, 12
    hooks = [
        (name, choice, hook) for name in REFERENCES for choice, hook in REFERENCES[name].items()
    ]
    for name, choice, hook in hooks:
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
        yield compared(f"{name} {choice}", layer.weights(as_mlx(x))[0], y, rounding.tolerance)


# Operations outside attention.


def positions(rounding: Rounding) -> Comparisons:
    """Compare RoPE's rotation and ALiBi's bias; angles are float32, and grow with the position."""
    numbers = Numbers(6)
    for width in sorted({*HEAD_WIDTHS, *WIDTHS}):
        for first in (0, 5, LONG):
            y = numbers(1, 2, 9, width)
            case = f"RoPE, heads of {width}, from position {first}"
            rotated = attention.rope(as_mlx(y), first)
            yield compared(case, rotated, reference.rope(y, first), ROTATED)
    slopes = (0.25, 2.0**-8)
    for T_q, T_k in ((_TOKENS, _TOKENS), (1, LONG)):
        expected = np.stack([-slope * reference.distance(T_q, T_k) for slope in slopes])
        places = Places.of_text(T_k, T_k - T_q)
        bias = attention.alibi_bias(mx.array(slopes), places.queries, places.keys)
        yield compared(f"ALiBi, {T_q} queries, {T_k} keys", bias, expected, FLOAT32.tolerance)


def norms(rounding: Rounding) -> Comparisons:
    """Compare LayerNorm, RMSNorm and QK-norm, with gradients, on few and on many numbers."""
    numbers = Numbers(7)
    for C in WIDTHS:
        for T in (1, _TOKENS):
            x, w, b = numbers(2, T, C) + 0.5, numbers(C), numbers(C)
            layernorm, rmsnorm = gpt.LayerNorm(C, eps=1e-4), gpt.RMSNorm(C, eps=1e-6)
            layernorm.update({"weight": as_mlx(w), "bias": as_mlx(b)})
            rmsnorm.update({"weight": as_mlx(w)})
            yield from _norm(
                layernorm, lambda x, w=w, b=b: reference.normalized(x, 1e-4, True) * w + b, x
            )
            yield from _norm(rmsnorm, lambda x, w=w: reference.normalized(x, 1e-6, False) * w, x)
    x = numbers(1, 2, _TOKENS, 64)
    y = reference.normalized(x, 1e-6, centred=False)
    yield compared("QK-norm", attention.unit_rms(as_mlx(x)), y, FLOAT32.tolerance)


def _norm(layer: nn.Module, expected: Callable[[Array], Array], x: Array) -> Comparisons:
    """Compare a norm in evaluation, which may take another path, and then with its gradient."""
    case = f"{type(layer).__name__} of {x.shape[2]}, {x.shape[1]} tokens"
    y = layer.eval()(as_mlx(x))
    yield compared(f"{case}, in evaluation", y, expected(x), FLOAT32.tolerance)
    yield from with_gradients({case: layer.train()}, expected, [x], FLOAT32.tolerance)


def activations(rounding: Rounding) -> Comparisons:
    """Compare GELU and squared ReLU, with gradients, on few and on many numbers."""
    numbers = Numbers(8)
    for name, layer in gpt.ACTIVATION_LAYERS.items():
        expected = partial(reference.activation, name=name)
        for size in (64, 8192):
            case, x = f"{name} of {size} numbers", numbers(size) * 6
            yield from with_gradients({case: layer()}, expected, [x], FLOAT32.tolerance)


def cross_entropy(rounding: Rounding) -> Comparisons:
    """Compare each token's loss and its gradient, for every vocabulary of the presets."""
    numbers = Numbers(9)
    for V in VOCABULARIES:
        logits, windows = numbers(2, 8, V) * 20, numbers.tokens(V, 2, 9)
        expected = partial(reference.cross_entropy, targets=windows[:, 1:])

        def loss(logits: mx.array, windows: Array = windows) -> mx.array:
            return batches.window_losses(lambda tokens: logits, as_mlx(windows))

        case = f"vocabulary of {V}"
        yield from with_gradients({case: loss}, expected, [logits], FLOAT32.tolerance)
