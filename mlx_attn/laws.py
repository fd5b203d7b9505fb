"""The laws of a layer: shapes, causality, decoding, affine maps.

A user's choices are tried when the first layer with them is made; tests hold the package's own to
the same laws. Shapes are known without computing anything. For the rest a layer reads a few tokens,
then texts as long as in training and a little shorter, also in training mode: a leak from a later
token is refused before it is trained, and not found in a loss that is too good.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_map

from mlx_attn.arrays import named_arrays
from mlx_attn.attention.attention import Attention
from mlx_attn.attention.cache import KVCache, Positions
from mlx_attn.attention.catalog import Choice, Hook
from mlx_attn.attention.config import AttentionConfig
from mlx_attn.attention.layer import Inputs, Scores, attention_scores
from mlx_attn.errors import ConfigError, one_line
from mlx_attn.machine.facts import products
from mlx_attn.machine.operations import multiply_heads
from mlx_attn.model.init import kept_random_state
from mlx_attn.plugins import plugin_error

TOKENS, WINDOW = 12, 5
"""The length of the first texts of a trial, and its window if the layer has one."""

_SEQUENCES, _BATCH = 4, 16  # of long and of short texts: some faults show only with many, or even
_FEW = 2  # sequences where only shapes are tried
_LONG = 128  # tokens; for time, one longer sequence is tried, and several only as in training
_PIECES = ([*range(1, TOKENS)], [7, 8])
"""Where a short text is cut to be read with a cache: into single tokens, and beyond a window."""

ROUNDING, SAME = {"float32": 1e-3, "TF32": 1e-2}, {"float32": 1e-5, "TF32": 1e-5}
"""Differences relative to the largest number, by what products round their factors to: of another
order of operations, and of the same."""

NOT_FINITE = "gives numbers that are not finite (a mixing reads -inf for later keys)"
IN_PLACE = "changes its input in place, and others read it too: write x = x + y instead of x += y"

Arrays = tuple[mx.array, ...]

_passed: dict[AttentionConfig, list[Choice]] = {}
"""The user's choices that a layer of these settings was tried with last: older ones are freed."""


def check_choices(layer: Attention) -> None:
    """Refuse a layer whose choices, as far as they are a user's, break a law.

    Each set of choices is tried once in a process.

    Raises:
        ConfigError: A map returns another shape than it must, or the layer leaks later tokens, is
            random, decodes differently from a full pass, has gradients that are not finite, or is
            declared affine and is not.
    """
    foreign = [choice for choice in layer.maps.all if choice.foreign_functions]
    names = " with ".join(f"{choice.map}={choice.name}" for choice in foreign)
    try:
        _check_shapes(layer)
        if _passed.get(layer.config) == foreign:  # another function of the name is tried again
            return
        _passed[layer.config] = foreign  # now, because the trial makes such layers
        with kept_random_state():
            mx.random.seed(0)  # the same weights each time, so that a file's fate is one
            broken = _broken_law_of(replace(layer.config, short_conv="none"))
        if broken:
            raise ConfigError(f"{names} {broken}")
    except BaseException as error:
        _passed.pop(layer.config, None)
        if isinstance(error, ConfigError) or not isinstance(error, Exception):
            raise
        reason = plugin_error(error) or f"{type(error).__name__}: {one_line(error)}"
        raise ConfigError(f"{names} cannot be computed or decoded: {reason}") from error


def _broken_law_of(config: AttentionConfig) -> str:
    """Return the law that a layer breaks, without convolutions, which the choices do not make."""
    few, window = min(TOKENS, config.context_length), min(config.window, WINDOW)
    short = replace(config, context_length=few, window=window)
    whole, trained = Attention(config), with_other_weights(Attention(config))
    if short != config:
        Attention(short)  # whose own trial reads short texts
    for T in _lengths(config.context_length) if short != config else [TOKENS]:
        broken = broken_law(trained, T)
        # Short texts are also read with the weights at the start; longer ones, if these fail.
        if broken == NOT_FINITE or (T == TOKENS and not broken):
            broken = broken_law(whole, T)
        if broken:
            return broken
    return ""


def _lengths(context_length: int) -> list[int]:
    """Return the long texts of a trial: as in training, and of a prime number of tokens."""
    # No block of tokens divides a prime.
    shorter = range(min(context_length, _LONG // 2) - 1, TOKENS, -1)
    primes = (n for n in shorter if all(n % i for i in range(2, math.isqrt(n) + 1)))
    return [T for T in (context_length, next(primes, 0)) if T > TOKENS]


def with_other_weights(layer: Attention) -> Attention:
    """Return the layer with trained-looking weights."""
    other = Attention(layer.config)
    other.update(moved(layer.trainable_parameters()))
    return other


def moved(weights: Any) -> Any:
    """Return a tree of weights as after a training: gates that start at 0 show their effect."""
    random = np.random.default_rng(0)

    def move(weight: mx.array) -> mx.array:
        spread = weight.shape[-1] ** -0.5 if weight.ndim > 1 else 0.3
        return weight + mx.array(random.normal(0, spread, weight.shape), weight.dtype)

    return tree_map(move, weights)


def broken_law(layer: Attention, tokens: int = TOKENS) -> str:
    """Return the law that a layer breaks, with the numbers; empty if it keeps all."""
    layer.eval()
    T = min(tokens, layer.config.context_length)
    B = _BATCH if T <= TOKENS else _SEQUENCES
    batch = _text(0, B, T, layer.config.d_in)  # [B, T, C]
    x = batch if T <= _LONG else batch[:1]
    y, text = _read(layer, x), _text(0, *batch.shape)[: len(x)]
    if not mx.isfinite(y).all():
        return NOT_FINITE
    if differ(x, text, SAME):
        return IN_PLACE
    groups = (
        _wrong_maps(layer, x),
        _maps_not_affine(layer, x),
        _wrong_facts(layer, x[:1]),
        _wrong_training(layer, batch),
        _wrong_gradients(layer, x),
    )
    return next(chain(_wrong_outputs(layer, x, y), *groups), "")


def _text(shift: int, B: int, T: int, C: int) -> Inputs:
    """Return sequences that repeat tokens, as texts do; another shift changes each token."""
    vocabulary = _drawn(0, T // 2 + 2, C)
    tokens = np.random.default_rng([B, T]).integers(len(vocabulary), size=(B, T)) + shift
    return vocabulary[mx.array(tokens % len(vocabulary))]


def _read(layer: Attention, x: Inputs, *caches: KVCache) -> Inputs:
    """Return the outputs for x; if layers pass arrays on, those of the next layer beside them."""
    carry: dict[str, Any] = {}
    y = layer(x, *caches[:1], carry=carry)
    if not (layer.maps.score.carries or layer.maps.value.carries):
        return y
    return mx.concatenate([y, layer(x[..., ::-1], *caches[1:], carry=carry)], axis=-1)


# The laws. Each yields a sentence about how it is broken.


def _wrong_outputs(layer: Attention, x: Inputs, y: Inputs) -> Iterator[str]:
    """Yield the faults of y: random, read from other tokens, or decoded differently."""
    if x.shape[1] <= TOKENS and differ(_read(layer, x), y, SAME):
        yield (
            "computes something else each time: draw random numbers only if layer.training, or "
            "once, as a weight"
        )
    yield from _wrong_reading(partial(_read, layer), x, y)
    if len(x) > 1:
        yield from _wrong_alone(_read(layer, x[:1]), y)
    yield from _wrong_decoding(layer, x, y)


def _wrong_training(layer: Attention, x: Inputs) -> Iterator[str]:
    """Yield the faults of the outputs in training, when numbers may be drawn."""
    layer.train()

    def read(x: Inputs, seed: int = 0) -> Inputs:
        mx.random.seed(seed)
        return _read(layer, x)

    y = read(x)
    if not mx.isfinite(y).all():
        yield f"in training {NOT_FINITE}"
    if x.shape[1] <= _LONG and differ(read(x), y, SAME):
        yield (
            "draws numbers in training that a resumed training would not draw again: draw them "
            "with mx.random and without a key of your own"
        )
    for broken in _wrong_reading(read, x, y):
        yield f"in training {broken}"
    alone = read(x[:1])
    if not differ(read(x[:1], seed=1), alone, SAME):  # nothing is drawn for each sequence
        yield from _wrong_alone(alone, y)


def _wrong_gradients(layer: Attention, x: Inputs) -> Iterator[str]:
    """Yield the gradients of a training step that are not finite; MLX raises if one is lacking."""
    if not named_arrays(layer.trainable_parameters()):
        return
    gradients = nn.value_and_grad(layer, lambda x: mx.square(_read(layer, x)).sum())(x)[1]
    for name, gradient in named_arrays(gradients).items():
        if not mx.isfinite(gradient).all():
            yield (
                f"gives gradients of {name} that are not finite: mx.where hides no infinite slope, "
                "so change what goes into the function, not what comes out (scores of -inf)"
            )


_MIXES = "mixes the sequences of a batch"


def _wrong_reading(read: Callable[[Inputs], Inputs], x: Inputs, y: Inputs) -> Iterator[str]:
    """Yield which other tokens the outputs y are read from: of other sequences, or later ones."""
    B, T, _ = x.shape
    for cuts in _cuts(B, T):
        # The same first tokens and other later ones: the first outputs must not change.
        same = (mx.arange(T) < mx.array(cuts)[:, None])[..., None]
        changed = read(mx.where(same, x, _text(1, *x.shape)))
        for row, seen in enumerate(cuts):
            off = differ(changed[row, :seen], y[row, :seen], SAME)
            if off and seen == T:
                yield f"{_MIXES}: with the others changed, the outputs of one change by {off}"
            elif off:
                yield (
                    f"lets a token read later ones: with tokens {seen + 1} to {T} changed, the "
                    f"outputs of those before change by {off}: no number of a token may depend "
                    "on later ones"
                )


def _cuts(B: int, T: int) -> list[list[int]]:
    """Return where each sequence is changed from there on; T leaves it as it is."""
    if B == 1:
        return [[T // 2], [T - 1]]
    if T <= TOKENS:
        return [[i % T or T for i in range(B)]]
    return [[T, T // 2, T - 1, T // 4 | 1], *([[T, T // 3 | 1, 1, 2]] if T <= _LONG else [])]


def _wrong_alone(alone: Inputs, y: Inputs) -> Iterator[str]:
    """Yield how the outputs of a sequence differ if it is read by itself."""
    if off := differ(alone, y[:1], ROUNDING):
        yield f"{_MIXES}: read alone, a sequence has other outputs, by {off}"


def _wrong_decoding(layer: Attention, x: Inputs, y: Inputs) -> Iterator[str]:
    """Yield how the outputs with a cache differ from y."""
    T, window = x.shape[1], layer.config.cache_window
    for places in _PIECES if T <= TOKENS else ([T // 3, T - 2, T - 1],):
        caches = [KVCache(T + 3, window, layer.config.caches_tokens) for _ in range(2)]
        cuts = [place for place in places if place < T]
        read = [_read(layer, part, *caches) for part in mx.split(x, cuts, axis=1)]
        if off := differ(mx.concatenate(read, axis=1), y, ROUNDING):
            cure = (
                "while it decodes, a map is given the new tokens only, and scores of empty slots. "
                "To read or count earlier ones use --short-conv, or a hook with remembers="
            )
            if layer.maps.mixing.recurs:
                cure = "recurs= must give the same heads, or refuse a window or hook with refuses="
            elif window and layer.maps.remembers:
                cure = "a hook that needs tokens before the window has remembers_all=True"
            elif window:
                cure += "; if only a window breaks it, refuse that with refuses="
            yield f"computes something else when it decodes with a cache, by {off}: {cure}"


def _wrong_maps(layer: Attention, x: Inputs) -> Iterator[str]:
    """Yield the faults of the maps: of their cache entries, and of `after`."""
    maps, T = layer.maps, x.shape[1]
    k = layer.score(x)[1]
    keeps_x = "x" in (maps.score.cache, maps.value.cache)
    if maps.caches_keys_only and maps.value.carries:
        yield "keeps no values, and its value reads more than x: leave out cache="
    elif keeps_x and (k.shape != x[:, None].shape or differ(k, x[:, None], SAME)):
        yield "keeps x as its key (cache='x'), and its key is not x"
    inputs, values = layer.value_input(x, k), layer.value(x, k)
    if differ(k, layer.score(x)[1], SAME):
        yield IN_PLACE
    if maps.value.after is not None:
        # Decoding chooses between both. Any weights that add up to 1 will do.
        weights = mx.softmax(_drawn(1, len(x), layer.config.n_maps, T, T), axis=-1)
        first = multiply_heads(weights, values)
        last = maps.value.after(layer, weights @ inputs[:, None])
        if tuple(last.shape) != tuple(first.shape):
            yield f"returns from after= the shape {last.shape}, and must {first.shape}"
        elif off := differ(last, first, ROUNDING):
            yield f"computes something else with after= than before the weighted sum, by {off}"


def _maps_not_affine(layer: Attention, x: Inputs) -> Iterator[str]:
    """Yield the maps that are called affine and are not."""
    maps, k = layer.maps, layer.score(x)[1]
    heads = (len(x), layer.config.n_maps, x.shape[1], layer.value(x, k).shape[-1])
    functions = (
        (maps.score, layer.score, (x.shape,)),
        (maps.value, layer.value, (x.shape, k.shape)),
        (maps.output, layer.output, (heads,)),
    )
    for choice, function, shapes in functions:
        if choice.affine and (off := _defect(function, shapes)):
            yield (
                f"is not linear up to a bias: of its {choice.map}, f(x + y) - f(x) - f(y) + f(0) "
                f"is {off}; declare it with affine=False"
            )


_SHIFTS = "gives other weights if a constant is added to all scores of a query"


def _wrong_facts(layer: Attention, x: Inputs) -> Iterator[str]:
    """Yield the declarations of choices that do not hold."""
    T, value, k = x.shape[1], layer.maps.value, layer.score(x)[1]
    scores = _drawn(0, len(x), layer.config.n_maps, T, T)
    constant = _drawn(1, len(x), layer.config.n_maps, T, 1)  # for each query
    yield from _wrong_facts_of_mixing(layer, x, scores + layer.mask(Positions.of_text(T)), constant)
    for hook in layer.maps.logits:
        memory = (hook.remembers(layer, x),) if hook.remembers else ()
        same, other = (hook.apply(layer, s, *memory) for s in (scores, scores + constant))
        if hook.shift_invariant and differ(mx.softmax(other, -1), mx.softmax(same, -1), ROUNDING):
            yield f"{_SHIFTS}: leave out shift_invariant= of logits={hook.name}"
        factor = hook.score_factor and hook.score_factor(layer).reshape(-1, 1, 1)
        if factor is not None and differ(factor * scores, same, ROUNDING):
            yield f"does more than multiply scores: leave out score_factor= of logits={hook.name}"
    # Other keys, same x: values that change were computed from keys.
    reads_x_only = not (value.reads_keys or value.carries)
    if reads_x_only and differ(value.apply(layer, x, k + 1), value.apply(layer, x, k), SAME):
        yield f"makes values from keys: declare value={value.name} with reads_keys=True"


def _wrong_facts_of_mixing(
    layer: Attention, x: Inputs, s: Scores, constant: mx.array
) -> Iterator[str]:
    mixing, memories = layer.maps.mixing, layer.remembered(x)
    more = layer.read_by_mixing(*layer.queries_and_keys(x), s, memories)
    weights, other = (mixing.apply(layer, scores, *more) for scores in (s, s + constant))
    if mixing.sums_to_one and differ(weights.sum(-1), mx.ones(weights.shape[:3]), ROUNDING):
        yield f"has weights that do not add up to 1: leave out sums_to_one= of mixing={mixing.name}"
    if mixing.shift_invariant and differ(other, weights, ROUNDING):
        yield f"{_SHIFTS}: leave out shift_invariant= of mixing={mixing.name}"


def _defect(function: Callable[..., Any], shapes: tuple[tuple[int, ...], ...]) -> str | None:
    x = [_drawn(2 * i, *shape) for i, shape in enumerate(shapes)]
    y = [_drawn(2 * i + 1, *shape) for i, shape in enumerate(shapes)]
    both = [p + q for p, q in zip(x, y, strict=True)]
    neither = [mx.zeros_like(p) for p in x]
    try:
        # An affine f has f(x + y) + f(0) = f(x) + f(y).
        results = [_as_tuple(function(*inputs)) for inputs in (both, neither, x, y)]
    except (AttributeError, TypeError, ValueError):  # an output map that reads x is given None
        return "not known, because it reads x too"
    defects = (differ(p + q, r + s, ROUNDING) for p, q, r, s in zip(*results, strict=True))
    return next(filter(None, defects), None)


def _as_tuple(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def _drawn(seed: int, *shape: int) -> mx.array:
    return mx.array(np.random.default_rng([seed, *shape]).standard_normal(shape, np.float32))


def differ(y: mx.array, wanted: mx.array, tolerance: Mapping[str, float]) -> str | None:
    """Describe the largest difference; None if it is rounding."""
    if wanted.size == 0:
        return None
    off, largest = (float(mx.abs(array).max()) for array in (y - wanted, wanted))
    if off <= tolerance[products()] * max(largest, 1e-6):  # and not: a NaN is a difference
        return None
    return f"{off:.2g} (the largest is {largest:.2g})"


# Shapes. MLX knows the shapes of lazy arrays, so nothing is computed.


def _check_shapes(layer: Attention) -> None:
    """Refuse a layer whose choices return other shapes than their maps must, with both shapes."""
    config, maps, H = layer.config, layer.maps, layer.config.n_maps
    B, T = _FEW, min(3, config.context_length)
    x = mx.zeros((B, T, config.d_in))

    def tried(choice: Choice, arguments: tuple[Any, ...], *wanted: tuple[int, ...]) -> Arrays:
        name = f"{choice.map}={choice.name}"
        carry = ({},) if getattr(choice, "carries", False) else ()
        return _checked(name, choice.apply, (layer, *arguments, *carry), *wanted)

    def remembered(hook: Hook) -> Arrays:
        name = f"remembers= of {hook.map}={hook.name}"
        return _checked(name, hook.remembers, (layer, x), (B, 0, T, 0)) if hook.remembers else ()

    shapes = (choice.shape(config) for choice in (maps.score, maps.value))
    keys, values = ((B, math.gcd(n, H), T, width) for n, width in shapes)  # n divides H
    q, k = tried(maps.score, (x,), (B, H, T, keys[3]), keys)
    for position in maps.position:
        for y in (q, k):
            tried(position, (y, mx.arange(T)), y.shape)
    (v,) = tried(maps.value, (layer.value_input(x, k), k), values)
    scores = attention_scores(q, k, config.scale)
    for hook in maps.logits:
        tried(hook, (scores, *remembered(hook)), scores.shape)
    more = layer.read_by_mixing(q, k, scores, remembered(maps.mixing))
    tried(maps.mixing, (scores, *more), scores.shape)
    tried(maps.output, (multiply_heads(scores, v), x), (B, T, config.d_out))


def _fits(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Compare shapes; in the wanted one 0 is any size."""
    sizes = (want in (0, n) for n, want in zip(shape, wanted, strict=False))
    return len(shape) == len(wanted) and all(sizes)


def _checked(
    name: str, function: Callable[..., Any], arguments: tuple[Any, ...], *wanted: tuple[int, ...]
) -> Arrays:
    """Return a function's results as a tuple, after comparing their shapes."""
    parts = named_arrays(arguments[0])
    try:
        results = _as_tuple(function(*arguments))
    except TypeError as error:
        if error.__traceback__ and error.__traceback__.tb_next:  # not the call, but within it
            raise
        raise ConfigError(f"{name} cannot be called: {error}") from error
    if more := named_arrays(arguments[0]).keys() - parts.keys():
        raise ConfigError(f"{name} sets layer.{min(more)}, which would be a weight: use weights=")
    shapes = [tuple(getattr(array, "shape", ())) for array in results]
    if len(shapes) != len(wanted) or not all(map(_fits, shapes, wanted)):
        words = ", ".join(map(str, wanted)).replace(" 0", " any")
        cure = "; shape= declares others" if name.partition("=")[0] in ("score", "value") else ""
        raise ConfigError(
            f"{name} must return, of {_FEW} sequences of {arguments[1].shape[-2]} tokens, "
            f"the shape {words}, and returned {', '.join(map(str, shapes))}{cure}"
        )
    if foreign := [type(array) for array in results if not isinstance(array, mx.array)]:
        kind = f"{foreign[0].__module__}.{foreign[0].__name__}"
        raise ConfigError(f"{name} must return an mx.array, and returned a {kind}")
    return results
