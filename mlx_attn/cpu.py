"""What a Linux processor needs to be fast.

Streams, exponentials as powers, and attention with a custom gradient.
"""

import math
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from functools import cache, partial, wraps
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from jaxtyping import Float, Integer
from mlx.utils import tree_flatten

from mlx_attn import blas
from mlx_attn.device import on_gpu, on_linux_cpu

_of_this_thread = threading.local()
"""MLX knows a stream only in the thread that made it."""


def cores() -> int:
    """How many streams can run side by side; 1 on a GPU, which divides the work itself."""
    return 1 if on_gpu() or _is_traced() else blas.preload().threads


def _is_traced() -> bool:
    """Whether a graph is made of what runs now, rather than numbers."""
    return getattr(_of_this_thread, "undivided", False)


def num_shards(pieces: int) -> int:
    """The largest number of equal shares of `pieces`, at most one per core."""
    return max(n for n in range(1, max(1, min(cores(), pieces)) + 1) if pieces % n == 0)


def parallel_map(function: Callable[[Any], Any], parts: Sequence[Any]) -> list[Any]:
    """Map a function over parts, each on its own stream; the results are being computed.

    Parts and results are arrays, or trees of arrays.

    MLX queues about a hundred operations ahead, so results that were begun one after the other
    would be computed so. They are begun leaf by leaf instead, the last leaves first: gradients are
    named from the first layer to the last and computed from the last to the first. For one part
    that order saves memory: what a layer kept for its gradients goes before the next layer's begin.
    """
    if on_gpu() or _is_traced():
        return [function(part) for part in parts]
    alone = len(parts) == 1 or cores() == 1
    streams = [mx.default_stream(mx.cpu)] * len(parts) if alone else _streams(len(parts))
    # A stream that needs what another computes waits for all that was begun together with it.
    mx.async_eval(*parts)
    results = []
    for stream, part in zip(streams, parts, strict=True):
        with mx.stream(stream):
            results.append(function(part))
    leaves = ([array for _, array in tree_flatten([result])] for result in results)
    for same in reversed(list(zip(*leaves, strict=True))):
        mx.async_eval(*same)
    return results


def single_stream(function: Callable) -> Callable:
    """The function on one stream, for `mx.compile` and `mx.vmap`: a trace can begin nothing."""

    @wraps(function)
    def on_one_stream(*given: Any) -> Any:
        _of_this_thread.undivided = True
        try:
            return function(*given)
        finally:
            _of_this_thread.undivided = False

    return on_one_stream


def _streams(count: int) -> list[mx.Stream]:
    """The default stream and others, the same ones at every call."""
    blas.use_threads(1)
    made = _of_this_thread.__dict__.setdefault("streams", [])
    while len(made) < count - 1:
        made.append(mx.new_stream(mx.cpu))
    return [mx.default_stream(mx.cpu), *made[: count - 1]]


class Differentiable:
    """A function with a gradient of its own, which a `Graph` leaves out."""

    def __init__(self, function: Callable[..., Any]):
        self._function = function
        self._with_gradient = mx.custom_function(function)

    def vjp(self, gradient: Callable[..., Any]) -> Callable[..., Any]:
        """Decorates its gradient, as that of MLX's `custom_function` does."""
        return self._with_gradient.vjp(gradient)

    def __call__(self, *given: Any) -> Any:
        """The function of arrays."""
        return (self._function if _within_graph() else self._with_gradient)(*given)


def _within_graph() -> bool:
    """Whether a function is being traced for a `Graph`."""
    return getattr(_of_this_thread, "within_graph", False)


HOT = 500
"""Runs after which a graph is compiled."""


class Graph:
    """A function of arrays, as a graph of operations that runs without Python.

    A GPU's is compiled at once. On a Linux processor that takes `g++` half a second for each chain
    of operations, once on a machine, which is longer than most texts take: the graph runs as it is
    until it has been needed often, and for ever where there is no compiler.

    Args:
        function: Takes and returns arrays; no gradient is asked for.
        like: Arrays of the shapes and types that it will be called with.
    """

    def __init__(self, function: Callable[..., list[mx.array]], like: Sequence[mx.array]):
        self._function = _for_graph(function)
        self._runs = 0
        self._run = (
            _exported(self._function, like) if on_linux_cpu() else mx.compile(self._function)
        )

    def __call__(self, *arrays: mx.array) -> Sequence[mx.array]:
        """What the function returns."""
        self._runs += 1
        if self._runs == HOT and on_linux_cpu() and _has_compiler():
            self._run = mx.compile(self._function)
        return self._run(*arrays)


def _for_graph(function: Callable[..., list[mx.array]]) -> Callable[..., list[mx.array]]:
    def traced(*arrays: mx.array) -> list[mx.array]:
        _of_this_thread.within_graph = True
        try:
            return function(*arrays)
        finally:
            _of_this_thread.within_graph = False

    return traced


def _exported(function: Callable[..., list[mx.array]], like: Sequence[mx.array]) -> Callable:
    """The function read back from the graph that MLX writes of it; itself where that cannot be."""
    with tempfile.TemporaryDirectory() as directory:
        file = str(Path(directory, "function.mlxfn"))
        try:
            mx.export_function(file, function, *like)
        except ValueError:  # an operation that is not written, such as a gradient of a user's own
            return mx.compile(function)
        read: Any = mx.import_function(file)
        return read


FEW = 4096
"""Of fewer numbers the exponentials take less time than starting several operations does."""

_LOG2_E = math.log2(math.e)
_LANES = 32
"""Numbers of a row that are reduced side by side before the rest."""


def softmax(x: Float[mx.array, "*batch n"]) -> Float[mx.array, "*batch n"]:
    """e^x / sum e^x along the last axis."""
    by_powers: Any = _softmax
    return by_powers(x) if _uses_powers(x) else mx.softmax(x, axis=-1)


def cross_entropy(
    logits: Float[mx.array, "*batch V"], targets: Integer[mx.array, "*batch"]
) -> Float[mx.array, "*batch"]:
    """The loss log(sum e^logits) - logits[target], in nats, of float32; targets are not checked."""
    if not on_linux_cpu():
        return mx.fast.cross_entropy(logits, targets)
    chosen = mx.take_along_axis(logits, targets[..., None], axis=-1).squeeze(-1)
    logsumexp: Any = _logsumexp
    return logsumexp(logits)[0] - chosen


def gelu(x: Float[mx.array, "*batch n"]) -> Float[mx.array, "*batch n"]:
    """The activation x / (1 + e^(-2 u(x))), u(x) = sqrt(2 / pi) (x + 0.044715 x^3).

    The tanh form of GELU (arXiv:1606.08415), which GPT-2 and the book use: (1 + tanh u) / 2 is
    1 / (1 + e^(-2 u)).
    """
    by_powers: Any = _gelu
    if is_compiled(x):
        return _gelu_of_few(x)
    return by_powers(x)[0] if _uses_powers(x) or on_linux_cpu() else nn.gelu_approx(x)


def _over_rows(
    reduce: Callable[..., mx.array], x: Float[mx.array, "*batch n"]
) -> Float[mx.array, "*batch 1"]:
    """Long rows are folded first: MLX has vector instructions for all axes but the last."""
    length = x.shape[-1]
    if length < 4 * _LANES or length % _LANES:
        return reduce(x, axis=-1, keepdims=True)
    folded = x.reshape(*x.shape[:-1], -1, _LANES)
    return reduce(reduce(folded, axis=-2), axis=-1, keepdims=True)


def is_compiled(x: mx.array) -> bool:
    """Whether to compile what is done with these numbers: few of them, where operations cost more.

    MLX's back end for Linux compiles with g++, which not every machine has.
    """
    few = x.size < FEW and x.dtype != mx.float64
    return few and on_linux_cpu() and (_has_compiler() or _within_graph())


@cache
def _has_compiler() -> bool:
    return shutil.which("g++") is not None


def _uses_powers(x: mx.array) -> bool:
    return x.dtype == mx.float64 or (on_linux_cpu() and x.size >= FEW)


@Differentiable
def _softmax(x: mx.array) -> mx.array:
    powers = mx.power(2.0, (x - _over_rows(mx.max, x)) * _LOG2_E)
    return powers / _over_rows(mx.sum, powers)


@_softmax.vjp
def _softmax_vjp(x: mx.array, cotangent: mx.array, y: mx.array) -> mx.array:
    weighted = cotangent * y
    return weighted - y * weighted.sum(axis=-1, keepdims=True)


@Differentiable
def _logsumexp(x: mx.array) -> tuple[mx.array, mx.array, mx.array]:
    """The logarithm, and the softmax that its gradient needs as numerators and denominator."""
    largest = _over_rows(mx.max, x)
    powers = mx.power(2.0, (x - largest) * _LOG2_E)
    total = _over_rows(mx.sum, powers)
    return (largest + mx.log(total)).squeeze(-1), powers, total


@_logsumexp.vjp
def _logsumexp_vjp(
    x: mx.array, cotangents: tuple[mx.array, ...], outputs: tuple[mx.array, ...]
) -> mx.array:
    _, powers, total = outputs
    return powers * (cotangents[0][..., None] / total)


_GELU_SLOPE = 2 * math.sqrt(2 / math.pi)


@partial(mx.compile, shapeless=True)
def _gelu_of_few(x: mx.array) -> mx.array:
    return x * mx.sigmoid((x * x * (0.044715 * _GELU_SLOPE) + _GELU_SLOPE) * x)


@Differentiable
def _gelu(x: mx.array) -> tuple[mx.array, mx.array]:
    """The activation, and 1 / (1 + e^(-2 u)), which its gradient needs."""
    exponent = (x * x * 0.044715 + 1) * x * (-_GELU_SLOPE * _LOG2_E)
    gate = 1 / (1 + mx.power(2.0, exponent))
    return x * gate, gate


@_gelu.vjp
def _gelu_vjp(
    x: mx.array, cotangents: tuple[mx.array, mx.array], outputs: tuple[mx.array, mx.array]
) -> mx.array:
    gate = outputs[1]
    slope = (x * x * (3 * 0.044715) + 1) * _GELU_SLOPE
    return cotangents[0] * gate * (1 + x * slope * (1 - gate))


def attention_cpu(
    q: Float[mx.array, "B H T_q K"],
    k: Float[mx.array, "B key_heads T_k K"],
    v: Float[mx.array, "B value_heads T_k D"],
    mask: mx.array,
    scale: float,
) -> Float[mx.array, "B H T_q D"]:
    """The weighted sum of values, in the input's type.

    Args:
        q: Queries; with fewer key or value heads, consecutive query heads share one.
        k: Keys.
        v: Values.
        mask: Added to the scores and broadcast over the batch (and heads); has no gradient.
        scale: Factor of the scores.
    """
    attend: Any = _weighed
    return attend(q * (scale * _LOG2_E), k, v, mask * _LOG2_E)[0]


@Differentiable
def _weighed(q: mx.array, k: mx.array, v: mx.array, mask: mx.array) -> tuple[mx.array, ...]:
    """The sum, and for its gradient the contiguous heads, the powers and their sums."""
    q, k, v = (mx.contiguous(heads) for heads in (q, k, v))
    scores = _by_rows(q, k.swapaxes(2, 3)) + mask
    powers = mx.power(2.0, scores - _over_rows(mx.max, scores))
    total, powers = _over_rows(mx.sum, powers).astype(q.dtype), powers.astype(q.dtype)
    return _by_rows(powers, v) / total, q, k, v, powers, total


@_weighed.vjp
def _weighed_vjp(
    inputs: tuple[mx.array, ...], cotangents: tuple[mx.array, ...], outputs: tuple[mx.array, ...]
) -> tuple[mx.array, ...]:
    y, q, k, v, powers, total = outputs
    dy = mx.contiguous(cotangents[0] / total)
    dweights = _by_rows(dy, v.swapaxes(2, 3)) - (dy * y).sum(axis=-1, keepdims=True)
    # By log2 e more than the gradient of the scores, which are of powers of two.
    dscores = powers * dweights
    dq = _by_rows(dscores, k) * (1 / _LOG2_E)
    dk = _by_columns(dscores, q, k) * (1 / _LOG2_E)
    return dq, dk, _by_columns(powers, dy, v), mx.zeros_like(inputs[3])


def _by_rows(
    rows: Float[mx.array, "B H T_q n"], matrices: Float[mx.array, "B heads n m"]
) -> Float[mx.array, "B H T_q m"]:
    """Their products; heads that share a matrix are folded into rows of one product."""
    B, H, T_q, _ = rows.shape
    folded = rows.reshape(B, matrices.shape[1], -1, rows.shape[-1])
    return (folded @ matrices).reshape(B, H, T_q, -1)


def _by_columns(
    rows: Float[mx.array, "B H T_q n"], values: Float[mx.array, "B H T_q m"], like: mx.array
) -> Float[mx.array, "B heads n m"]:
    """rows^T values, summed over the heads that share a head of `like`."""
    B, heads = like.shape[:2]
    rows, values = (array.reshape(B, heads, -1, array.shape[-1]) for array in (rows, values))
    return rows.swapaxes(2, 3) @ values
