"""Check whole models: draws of a seed, golden losses, decoding, training, and the sampler."""

from collections.abc import Callable, Iterator
from functools import partial
from hashlib import sha256
from itertools import islice
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_unflatten
from scipy.special import softmax

from mlx_attn.arrays import named_arrays
from mlx_attn.attention.cache import make_cache
from mlx_attn.attention.config import VARIANTS, AttentionConfig
from mlx_attn.attention.conversions import CONVERSIONS
from mlx_attn.attention.layer import Initializer
from mlx_attn.machine import graphs
from mlx_attn.machine.device import repeats_bits
from mlx_attn.machine.streams import compiles_step
from mlx_attn.model.config import BLOCKS, config_from
from mlx_attn.model.gpt import GPT
from mlx_attn.sampling import decoding, samplers
from mlx_attn.sampling.config import SamplerConfig
from mlx_attn.training import batches, step
from mlx_attn.training.config import TrainConfig
from mlx_attn.training.optimizers import GroupedOptimizer
from mlx_attn.verify.reference import Array, Numbers, ReferenceGPT
from mlx_attn.verify.tolerance import (
    FLOAT32,
    Comparison,
    Rounding,
    as_mlx,
    as_numpy,
    compared,
    difference,
)

Comparisons = Iterator[Comparison]
_SIZES: dict[str, Any] = {"vocab_size": 65, "context_length": 32, "emb_dim": 128, "n_layers": 2}

# Draws of a seed.

STARTS = {"book": "ecaad6cb6cf0a404", "gpt2": "99b03b3b9cd6a10b", "zero": "ed3c1b8f7be04d3a"}
"""Digests of the weights of seed 7."""
WINDOWS = "cafaf2dd3ec14b9d"
"""Digest of the windows that the first steps of a training see."""


def starting_weights(rounding: Rounding) -> Comparisons:
    """Compare digests of all initial weights of a seed, which are the same on every machine."""
    sizes = {"vocab_size": 50, "context_length": 16, "emb_dim": 32, "n_heads": 4, "n_layers": 2}
    for start, expected in STARTS.items():
        weights = named_arrays(GPT(config_from({**sizes, "start": start}), seed=7))
        parts = (name.encode() + np.array(weights[name]).tobytes() for name in sorted(weights))
        yield _same_digest(f"start {start}, seed 7", b"".join(parts), expected)


def batches_of_a_seed(rounding: Rounding) -> Comparisons:
    """Compare the starts of a training's windows, which are the same on every machine."""
    windows = batches.RandomWindows(1_000_000, 64, 8)
    starts = [np.array(windows.starts(7, n)).astype("<i8").tobytes() for n in range(4)]
    yield _same_digest("four steps of seed 7", b"".join(starts), WINDOWS)


def seed_digest() -> str:
    """Return a digest of the starting weights and batches of a seed, the same on every machine."""
    found = [*starting_weights(FLOAT32), *batches_of_a_seed(FLOAT32)]
    return sha256("".join(comparison.case for comparison in found).encode()).hexdigest()[:16]


def _same_digest(case: str, content: bytes, expected: str) -> Comparison:
    found = sha256(content).hexdigest()[:16]
    return Comparison(f"{case}: {found}, must be {expected}", float(found != expected), 0.0)


# Losses and gradients.

GOLDEN: dict[str, tuple[dict[str, Any], float]] = {
    "the book's block": ({"n_heads": 4, **BLOCKS["book"], "qkv_bias": True}, 4.661941469018121),
    "RoPE, QK-norm, shared keys": (
        {"n_heads": 4, "n_kv_heads": 2, **BLOCKS["modern"], "position": "rope", "qk_norm": True},
        4.9452309619137695,
    ),
    "ALiBi, windows, tied head": (
        {"n_heads": 2, **BLOCKS["modern"], "position": "alibi", "tied_head": True, "window": 8}
        | {"global_every": 2},
        4.823812071997574,
    ),
    "keys and values shared by two of three layers": (
        {"n_heads": 4, **BLOCKS["modern"], "position": "rope", "n_layers": 3, "kv_sharing": 2}
        | {"n_kv_heads": 2},
        4.737998415966775,
    ),
}
"""Small models, with their losses in nats per token, computed by NumPy in float64."""


def golden_models(rounding: Rounding) -> Comparisons:
    """Compare losses and all gradients of small GPTs; also NumPy's own loss with the stored one."""
    for name, (settings, golden) in GOLDEN.items():
        judge, model, windows = _pair(settings)
        expected = judge.loss_and_gradients(windows)
        yield Comparison(f"{name}: NumPy on this machine", abs(expected - golden), 1e-9)
        loss, gradients = nn.value_and_grad(model, _mean_loss)(model, as_mlx(windows))
        yield compared(f"{name}: loss", loss, np.array(golden), rounding.tolerance)
        found = named_arrays(gradients)
        least = 0.01 * max(float(np.abs(array).max()) for array in judge.gradients.values())
        for weight, wanted in judge.gradients.items():
            case = f"{name}, gradient: {weight}"
            yield compared(case, found[weight], wanted, rounding.tolerance, least)


def _pair(settings: dict[str, Any]) -> tuple[ReferenceGPT, GPT, np.ndarray]:
    """Return the reference and the model with the same weights, and windows to read."""
    config, numbers = config_from({**_SIZES, **settings}), Numbers(11)
    model, weights = GPT(config, seed=None), {}
    for name, array in sorted(named_arrays(model).items()):
        spread = 2 * array.shape[-1] ** -0.5 if array.ndim == 2 else 0.3
        drawn = numbers(*array.shape) * spread + float("norm" in name and name.endswith("weight"))
        weights[name] = drawn.astype(np.float32).astype(np.float64)
    model.update(tree_unflatten([(name, as_mlx(w)) for name, w in weights.items()]))
    windows = numbers.tokens(config.vocab_size, 2, config.context_length + 1)
    return ReferenceGPT(config, weights), model, windows


def _mean_loss(model: GPT, windows: mx.array) -> mx.array:
    return batches.window_losses(model, windows).mean(-1).mean(-1)


# Decoding.

_ANY = AttentionConfig(d_in=1, d_out=1, context_length=1)
LAYOUTS: dict[str, dict[str, Any]] = {
    "keys and values": {},
    "one head of keys": {"n_kv_heads": 1},
    "keys and values, RoPE": {"position": "rope"},
    "keys and values, ALiBi": {"position": "alibi"},
    "a ring of 300": {"window": 300, "position": "rope"},
    "keys that are values": VARIANTS["key-as-value"].maps,
    "x": VARIANTS["merged"].maps,
    "x, ALiBi": {**VARIANTS["merged"].maps, "position": "alibi"},
    "keys alone": {**CONVERSIONS["slim"].keys(_ANY, 0), "position": "rope"},
    "what a hook keeps": VARIANTS["forgetting"].maps,
}
"""Every layout of the cache, with settings that may break it."""
PROMPT, CHUNK, END = 1_020, 240, 1_284
"""Tokens read at first, together after ten single ones, and in all."""


def cached_decoding(rounding: Rounding) -> Comparisons:
    """Compare tokens read one by one and in chunks with all at once, beyond 1,024 keys."""
    tokens = as_mlx(Numbers(12).tokens(50, 1, END))
    chunks = [PROMPT, *[1] * 10, CHUNK, *[1] * (END - PROMPT - CHUNK - 10)]
    for name, settings in LAYOUTS.items():
        yield from _slots(name, settings.get("window", 0), chunks)
        sizes = {"vocab_size": 50, "context_length": END, "emb_dim": 128, "n_heads": 2}
        # Scores stay unscaled: sharp attention reveals lost cache entries.
        config = config_from({**sizes, "n_layers": 1, "start": "book", "scale": 1.0, **settings})
        model = GPT(config)
        model.eval()
        expected = as_numpy(model(tokens))
        caches, parts = model.new_caches(), mx.split(tokens, np.cumsum(chunks)[:-1].tolist(), 1)
        found = mx.concatenate([model(part, caches) for part in parts], axis=1)
        yield compared(f"{name}: logits", found, expected, rounding.tolerance)


def _slots(name: str, window: int, chunks: list[int]) -> Comparisons:
    """Compare the numbered tokens that a cache returns with those that the new queries see."""
    cache, end, wrong = make_cache(END, window), 0, 0
    for size in chunks:
        start, end = end, end + size
        numbered = mx.arange(start, end).reshape(1, 1, size, 1)
        kept, places = cache.extend((numbered,))
        found, keys = np.array(kept[0]).ravel(), np.array(places.keys)
        first = max(start - window + 1, 0) if window else 0
        missing = set(range(first, end)) - set(found[keys < end].tolist())
        wrong += bool(missing) or not np.array_equal(found[keys < end], keys[keys < end])
    yield Comparison(f"{name}: slots of {end} tokens", float(wrong), 0.0)


def greedy_sampling(rounding: Rounding) -> Comparisons:
    """Compare each token's logit at temperature 0 with the largest logit, both by NumPy."""
    for name, (settings, _) in GOLDEN.items():
        judge, model, windows = _pair(settings)
        prompt = windows[0, :8].tolist()
        sampler = samplers.Sampler(SamplerConfig(temp=0.0))
        model.eval()
        decoded = decoding.decode(decoding.DecodingState(model), prompt, sampler)
        text = [*prompt, *(row[0] for row in islice(decoded, 20))]
        logits = judge.logits(np.array([text]))[0][0, len(prompt) - 1 : -1]
        chosen = np.take_along_axis(logits, np.array(text[len(prompt) :])[:, None], axis=1)[:, 0]
        gap = float((logits.max(axis=1) - chosen).max() / np.abs(logits).max())
        yield Comparison(name, gap, rounding.tolerance)


# Training.

LOOSE = 2e-2
"""Tolerance of weights: the first step follows the gradient's sign, which rounding sets near 0."""


def compiled(rounding: Rounding) -> Comparisons:
    """Compare compiled code with uncompiled: a training on a GPU, otherwise one activation.

    On a processor, trainings are compiled only on request, because g++ takes a minute for one.
    """
    x, chain = Numbers(14)(3, 5, 7), graphs.compiled(lambda x: x * mx.sigmoid(1.7 * x) + 0.5 * x)
    y = x / (1 + np.exp(-1.7 * x)) + 0.5 * x
    note = "left out: there is no g++ to compile with" if graphs.lacks_compiler() else ""
    apart = difference(as_numpy(chain(as_mlx(x))), y)
    yield Comparison("a chain of operations", apart, rounding.tolerance, note)
    if compiles_step("auto"):
        (written, weights), (found, moved) = _training("off"), _training("on")
        yield Comparison("losses of a training", difference(found, written), rounding.tolerance)
        yield Comparison("weights of a training", _furthest(moved, weights), LOOSE)


def repeated_training(rounding: Rounding) -> Comparisons:
    """Compare two trainings of a seed: the same bits on a Linux processor, elsewhere almost.

    On a GPU the order of sums may change; nobody has tested this on a Mac's processor.
    """
    (first, weights), (second, again) = _training("auto"), _training("auto")
    apart = max(difference(second, first), _furthest(again, weights))
    note = f"apart by {apart:.0e}" if apart else "the same bits"
    tolerance = 0.0 if repeats_bits() else LOOSE
    yield Comparison("five steps with dropout", apart, tolerance, note)


def _furthest(found: dict[str, mx.array], expected: dict[str, mx.array]) -> float:
    return max(difference(as_numpy(found[n]), as_numpy(w)) for n, w in expected.items())


def _training(compile_: str) -> tuple[np.ndarray, dict[str, mx.array]]:
    """Train a small model on random tokens; return its losses, norms and final weights."""
    settings = {"n_layers": 1, "emb_dim": 32, "n_heads": 2, "drop_rate": 0.1, **BLOCKS["modern"]}
    recipe = TrainConfig(steps=5, batch_size=8, compile=compile_, optimizer="muon")
    model, tokens = GPT(config_from({**_SIZES, **settings}), seed=1), Numbers(13).tokens(65, 4096)
    optimizer = GroupedOptimizer(model, recipe, 2, settings["emb_dim"])
    optimizer.schedule(1.0)
    objective = batches.Objective(tokens.astype(np.uint16), 32)
    train = step.TrainStep(model, optimizer, objective, recipe)
    sampler, reported = batches.RandomWindows(4096, 32, 8), []
    for n in range(recipe.steps):
        mx.random.seed(n)
        loss, norm = train(sampler.starts(7, n))
        mx.eval(loss, norm, train.state)
        reported.append((loss.item(), norm.item()))
    return np.array(reported), named_arrays(model)


# Random numbers and the sampler, by NumPy: filters number by number, draws by their frequency.

DRAWS = 2_000
FREQUENCY = 5 / (2 * DRAWS**0.5)
"""Tolerance of a frequency: five standard deviations, which are at most 1 / (2 sqrt(draws))."""
_SIDE = 1_000
"""Rows and columns of the matrices that initialisation draws."""
SPREAD = 0.015
"""Tolerance of moments of a million numbers: more than four standard deviations of the fourth."""
CUT = -1e3
"""Replaces minus infinity, so that filtered tokens have a finite difference."""


def random_numbers(rounding: Rounding) -> Comparisons:
    """Compare the mean, spread and fourth moment of the numbers that initialise a layer."""
    mx.random.seed(7)
    start = Initializer()
    uniform, normal = start("", _SIDE, _SIDE) * _SIDE**0.5, start.normal("", (_SIDE, _SIDE))
    for name, drawn, fourth in (("uniform", uniform * 3**0.5, 9 / 5), ("normal", normal, 3.0)):
        x = as_numpy(drawn)
        moments = np.array([x.mean(), (x**2).mean(), (x**4).mean() / fourth])
        yield compared(name, mx.array(moments), np.array([0.0, 1.0, 1.0]), SPREAD)


def _top_k(logits: Array, k: int) -> Array:
    return np.where(np.argsort(np.argsort(-logits)) < k, logits, CUT)


def _top_p(logits: Array, p: float) -> Array:
    chosen = np.zeros(logits.shape, bool)
    for row, probabilities in zip(chosen, softmax(logits, axis=-1), strict=True):
        total = 0.0
        for token in np.argsort(-probabilities):
            if total < p:
                row[token] = True
            total += probabilities[token]
    return np.where(chosen, logits, CUT)


def _min_p(logits: Array, fraction: float) -> Array:
    probabilities = softmax(logits, axis=-1)
    likely = probabilities >= fraction * probabilities.max(axis=-1, keepdims=True)
    return np.where(likely, logits, CUT)


def _penalised(logits: Array, recent: Array, penalty: float) -> Array:
    y = logits.copy()
    for row, tokens in zip(y, recent, strict=True):
        for token in set(tokens.tolist()):
            row[token] *= 1 / penalty if row[token] > 0 else penalty
    return y


def sampling(rounding: Rounding) -> Comparisons:
    """Compare top-k, top-p, min-p and the penalty token by token, and the frequency of draws."""
    numbers = Numbers(15)
    for size in (12, 1024):
        logits, recent = numbers(3, size) * 6, numbers.tokens(size, 3, 5)
        filters: dict[str, tuple[Callable[..., mx.array], Array]] = {
            "top-k 5": (partial(samplers.top_k, k=5), _top_k(logits, 5)),
            "top-p 0.8": (partial(samplers.top_p, p=0.8), _top_p(logits, 0.8)),
            "min-p 0.1": (partial(samplers.min_p, fraction=0.1), _min_p(logits, 0.1)),
            "penalty 1.3": (
                partial(samplers.penalise, recent=as_mlx(recent), penalty=1.3),
                _penalised(logits, recent, 1.3),
            ),
        }
        for name, (function, expected) in filters.items():
            y = mx.maximum(function(as_mlx(logits)), CUT)
            yield compared(f"{name} of {size} tokens", y, expected, FLOAT32.tolerance)
    yield from _frequencies(numbers(12) * 3)


def _frequencies(logits: Array) -> Comparisons:
    """Compare the first tokens of texts with consecutive seeds with their probabilities."""
    settings = {
        "temperature 1": ({"temp": 1.0}, logits),
        "temperature 0.5": ({"temp": 0.5}, logits / 0.5),
        "top-k 3, temperature 2": ({"temp": 2.0, "top_k": 3}, _top_k(logits[None], 3)[0] / 2),
    }
    for name, (options, expected) in settings.items():
        sampler = samplers.Sampler(SamplerConfig(seed=7, **options), DRAWS)
        rows = mx.broadcast_to(as_mlx(logits), (DRAWS, len(logits)))
        drawn = np.array(sampler(rows, mx.zeros((DRAWS, 0), mx.uint32))).ravel()
        counts = np.bincount(drawn % len(logits), minlength=len(logits)) / DRAWS
        apart = float(np.abs(counts - softmax(expected, axis=-1)).max())
        yield Comparison(f"{DRAWS:,} draws, {name}", apart, FREQUENCY)
