"""The five checks of this machine: products, attention, decoding, losses, and the same bits twice.

They call the functions that a training and a sampling call, so they verify the code that runs. A
check that raises an error fails too, with MLX's message.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_unflatten

from mlx_attn.arrays import named_arrays
from mlx_attn.attention.attention import Attention, MultiHeadAttention
from mlx_attn.attention.cache import Positions
from mlx_attn.attention.catalog import VARIANTS
from mlx_attn.errors import one_line
from mlx_attn.machine import device
from mlx_attn.machine.facts import FLOAT32, TF32, product_error
from mlx_attn.machine.operations import fused_attention, multiply_heads
from mlx_attn.machine.streams import first_step_compiles
from mlx_attn.model.config import BLOCKS, config_from
from mlx_attn.model.gpt import GPT
from mlx_attn.training.batches import Objective, RandomWindows, window_losses
from mlx_attn.training.config import TrainConfig
from mlx_attn.training.optimizers import GroupedOptimizer
from mlx_attn.training.step import TrainStep

Array = np.ndarray


@dataclass(frozen=True, slots=True)
class Comparison:
    """The difference of a result from the expected one."""

    case: str  # the path and the shape
    difference: float  # the largest one, divided by the largest expected number
    bound: float  # the largest difference that is right; 0 if the bits must be the same

    @property
    def share(self) -> float:
        """Return the difference relative to the bound; more than 1 is wrong."""
        return self.difference / (self.bound or 1e-30)


def compared(case: str, found: mx.array, expected: Any, bound: float) -> Comparison:
    """Compare a result of MLX with the expected one; NaN is wrong."""
    y, expected = np.array(found, np.float64), np.array(expected, np.float64)
    apart = float(np.abs(y - expected).max()) / (float(np.abs(expected).max()) or 1.0)
    return Comparison(case, apart if np.isfinite(apart) else 1e30, bound)


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check on a device."""

    check: str
    compares: str  # what with what, and where the bound comes from
    device: str  # cpu or gpu
    comparisons: Sequence[Comparison]
    seconds: float
    error: str  # the message of the error that the device raised, if any

    @property
    def furthest(self) -> Comparison | None:
        """Return the comparison nearest to its bound, or furthest beyond it."""
        return max(self.comparisons, key=lambda comparison: comparison.share, default=None)

    @property
    def is_right(self) -> bool:
        """Return True if comparisons were made and all are right."""
        return not self.error and bool(self.furthest and self.furthest.share <= 1)


class Numbers(np.random.Generator):
    """Draw numbers that are equal on every machine."""

    def __init__(self, seed: int):
        super().__init__(np.random.Philox(key=seed))

    def __call__(self, *shape: int) -> Array:
        """Return numbers between -1 and 1 that float32 represents exactly."""
        return (2 * self.random(shape) - 1).astype(np.float32).astype(np.float64)

    def tokens(self, vocab_size: int, *shape: int) -> Array:
        """Return token ids."""
        return np.floor(self.random(shape) * vocab_size).astype(np.int32)


_SIZES: dict[str, Any] = {"vocab_size": 65, "context_length": 32, "emb_dim": 128, "n_layers": 2}


def products(bound: float) -> Iterator[Comparison]:
    """Products against NumPy's float64; bound: the rounding of float32, or of TF32 if measured."""
    yield Comparison("[256, 256] times [256, 256]", product_error(), bound)
    numbers = Numbers(2)
    for T, C, width in ((1, 128, 512), (64, 384, 1536), (1, 768, 8192)):
        x, W = numbers(T, C), numbers(C, width)
        case = f"[{T}, {C}] times [{C}, {width}]"
        yield compared(case, mx.array(x) @ mx.array(W), x @ W, 3 * bound)
    q, k = numbers(2, 4, 64, 32) * 2.0**20, numbers(2, 4, 32, 64)  # beyond float16's range
    yield compared("large, by heads", mx.array(q) @ mx.array(k), q @ k, 3 * bound)


# Attention: query heads, key heads, width, width of values, queries, keys. Some of Metal's kernels
# change at 1,024 keys, a Linux processor takes 256 queries at a time, and with merged scores x is
# the only key.

LONG = 1_100
SHAPES: tuple[tuple[tuple[int, ...], dict[str, Any]], ...] = (
    ((4, 4, 32, 32, 40, 40), {}),
    ((4, 2, 64, 64, 40, 40), {}),
    ((4, 4, 64, 64, 40, 40), {"position": "alibi"}),
    ((4, 4, 64, 64, 40, 40), {"window": 16}),
    ((2, 1, 128, 32, 40, 40), {}),
    ((4, 2, 32, 32, 600, 600), {"position": "alibi", "window": 300}),
    ((4, 2, 32, 32, 1, LONG), {}),
    ((4, 1, 64, 64, 8, LONG), {}),
    ((4, 4, 64, 64, 1, LONG), {"position": "alibi"}),
    ((2, 1, 128, 128, 1, LONG), {}),
)
PATHS: dict[str, Callable[..., mx.array]] = {
    "fused": lambda layer, q, k, v, positions: fused_attention(
        q, k, v, layer.config.scale, layer.mask(positions, by_name=True)
    ),
    "written out": lambda layer, q, k, v, positions: multiply_heads(layer.mix(q, k, positions), v),
    "as picked": Attention.attend,
}


def attention(bound: float) -> Iterator[Comparison]:
    """Each path of attention, and gradients, against a softmax in float64; bound: 10 products'."""
    numbers = Numbers(3)
    for (H, key_heads, D, width, T_q, T_k), choices in SHAPES:
        layer = MultiHeadAttention(H * D, H * D, LONG, 0.0, H, **choices)
        queries = mx.arange(T_k - T_q, T_k)
        positions = Positions(T_k - T_q, queries, 0, mx.arange(T_k), whole=T_q == T_k)
        layer.train(T_q == T_k)
        q, k = numbers(2, H, T_q, D) * 4, numbers(2, key_heads, T_k, D)
        arrays = (q, k, numbers(2, key_heads, T_k, width), numbers(2, H, T_q, width))
        paths = {name: partial(path, layer, positions=positions) for name, path in PATHS.items()}
        with device.float64():
            expected = _attended(paths["written out"], arrays, mx.float64, layer.training)
        for name, path in paths.items():
            case = f"{name}: {H} heads of {D}, {key_heads} of keys, {T_q} queries, {T_k} keys"
            case += "".join(f", {key} {value}" for key, value in choices.items())
            for letter, y in _attended(path, arrays, mx.float32, layer.training).items():
                yield compared(f"{letter} {case}", y, expected[letter], 10 * bound)


def _attended(
    attend: Callable[..., mx.array], arrays: Sequence[Array], dtype: mx.Dtype, with_gradients: bool
) -> dict[str, mx.array]:
    """Return the result y for q, k and v, and the gradients of sum(y R) for all three."""
    *inputs, R = (mx.array(array, dtype) for array in arrays)
    found = {"y": attend(*inputs)}
    if with_gradients:
        gradients: Any = mx.grad(lambda *qkv: (attend(*qkv) * R).sum(), (0, 1, 2))(*inputs)
        found |= zip(("dq", "dk", "dv"), gradients, strict=True)
    mx.eval(found)
    return found


LAYOUTS: dict[str, dict[str, Any]] = {
    "keys and values, RoPE": {"position": "rope"},
    "one head of keys, ALiBi": {"n_kv_heads": 1, "position": "alibi"},
    "a ring of 300": {"window": 300, "position": "rope"},
    "x, the key of merged scores": VARIANTS["merged"].maps,
    "what a hook keeps": VARIANTS["forgetting"].maps,
    "a state": {**VARIANTS["gated-deltanet"].settings, "scale": 0.0},
}
"""Every layout of the cache, with settings that may break it."""
CHUNKS = (1_020, *[1] * 10, 100, *[1] * 5)
"""How many tokens are read at a time, on both sides of 1,024 keys."""


def cached_decoding(bound: float) -> Iterator[Comparison]:
    """Tokens read in chunks and one by one against the full pass; bound: 10 products'."""
    tokens = mx.array(Numbers(12).tokens(50, 1, sum(CHUNKS)))
    parts = mx.split(tokens, np.cumsum(CHUNKS)[:-1].tolist(), 1)
    sizes = {"vocab_size": 50, "context_length": sum(CHUNKS), "emb_dim": 128, "n_heads": 2}
    for name, settings in LAYOUTS.items():
        # Scores stay unscaled: sharp attention reveals lost cache entries.
        model = GPT(config_from({**sizes, "n_layers": 1, "scale": 1.0, **settings}))
        model.eval()
        caches, expected = model.new_caches(), model(tokens)
        found = mx.concatenate([model(part, caches) for part in parts], axis=1)
        yield compared(name, found, expected, 10 * bound)


GOLDEN: dict[str, tuple[dict[str, Any], tuple[float, float]]] = {
    "the book's block": (
        {"n_heads": 4, **BLOCKS["book"], "qkv_bias": True},
        (4.661941469018121, 5.573180537695436),
    ),
    "RoPE, QK-norm, shared keys": (
        {"n_heads": 4, "n_kv_heads": 2, **BLOCKS["modern"], "position": "rope", "qk_norm": True},
        (4.9452309619137695, 7.01765083721425),
    ),
    "ALiBi, windows, tied head": (
        {"n_heads": 2, **BLOCKS["modern"], "position": "alibi", "tied_head": True, "window": 8}
        | {"global_every": 2},
        (4.823812071997574, 6.077504904141759),
    ),
}
"""Small models, with the loss in nats per token and the norm of all gradients.

NumPy computed them in float64, by tests/verify/reference.py of commit 10033ed.
"""


def golden_losses(bound: float) -> Iterator[Comparison]:
    """Losses and gradients of small GPTs against stored ones of NumPy; bound: 10 products'."""
    for name, (settings, expected) in GOLDEN.items():
        model, windows = golden_model(settings)
        mean_loss = nn.value_and_grad(model, lambda *inputs: window_losses(*inputs).mean())
        loss, gradients = mean_loss(model, mx.array(windows))
        squares = [mx.square(array).sum() for array in named_arrays(gradients).values()]
        found = mx.stack([loss, mx.sqrt(mx.stack(squares).sum())])
        yield compared(name, found, expected, 10 * bound)


def golden_model(settings: dict[str, Any]) -> tuple[GPT, Array]:
    """Return a model whose weights are the same on every machine, and windows [B, T + 1]."""
    config, numbers = config_from({**_SIZES, **settings}), Numbers(11)
    model, weights = GPT(config, seed=None), []
    for name, array in sorted(named_arrays(model).items()):
        spread = 2 * array.shape[-1] ** -0.5 if array.ndim == 2 else 0.3
        drawn = numbers(*array.shape) * spread + float("norm" in name and name.endswith("weight"))
        weights.append((name, mx.array(drawn, mx.float32)))
    model.update(tree_unflatten(weights))
    return model, numbers.tokens(config.vocab_size, 2, config.context_length + 1)


def same_bits_twice(bound: float) -> Iterator[Comparison]:
    """Two trainings of a seed; bound: no bit on Linux, elsewhere the order of sums."""
    first, again = _training("auto"), _training("auto")
    # The first step follows the gradient's sign, which rounding sets near 0.
    loose = 0.0 if device.repeats_bits() else 2e-2
    yield compared("weights after five steps with dropout", again, first, loose)
    if first_step_compiles("auto"):  # on a GPU, at once or in long runs
        on, off = _training("on"), _training("off")
        yield compared("a compiled training and one that is not", on, off, 2e-2)


def _training(compile_: str) -> mx.array:
    """Train a small model on random tokens, and return its weights."""
    settings = {"n_layers": 1, "emb_dim": 32, "n_heads": 2, "drop_rate": 0.1, **BLOCKS["modern"]}
    recipe = TrainConfig(steps=5, batch_size=8, compile=compile_, optimizer="muon")
    model, tokens = GPT(config_from({**_SIZES, **settings}), seed=1), Numbers(13).tokens(65, 4096)
    optimizer = GroupedOptimizer(model, recipe)
    optimizer.schedule(1.0)
    train = TrainStep(optimizer, Objective(tokens.astype(np.uint16), 32), recipe)
    windows = RandomWindows(4096, 32, 8)
    for n in range(recipe.steps):
        mx.random.seed(n)
        mx.eval(train(windows.starts(7, n)), train.state)
    return mx.concatenate([array.flatten() for array in named_arrays(model).values()])


CHECKS = (products, attention, cached_decoding, golden_losses, same_bits_twice)
"""Products come first, because an error in one also makes whole models wrong."""


def verify() -> Iterator[Finding]:
    """Yield every check's finding on the chosen device, by default on all that MLX can use."""
    for name in [device.chosen_device()] if device.chosen_device() else device.devices():
        with device.on_device(name):
            yield from (run(check) for check in CHECKS)


def run(check: Callable[[float], Iterator[Comparison]]) -> Finding:
    """Run a check on the default device; an error that it raises becomes a finding.

    A device that rounds products worse than TF32 gets the bounds of float32, and fails.
    """
    began, comparisons, error = time.perf_counter(), [], ""
    try:
        bound = TF32 if FLOAT32 < product_error() <= TF32 else FLOAT32
        comparisons.extend(check(bound))
    except Exception as raised:
        error = one_line(f"{type(raised).__name__}: {raised}")
    seconds, name = round(time.perf_counter() - began, 3), check.__name__.replace("_", " ")
    return Finding(name, str(check.__doc__), device.device_name(), comparisons, seconds, error)
