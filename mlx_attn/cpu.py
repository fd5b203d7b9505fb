"""What a Linux processor needs to be fast: streams, and attention with a custom gradient."""

import threading
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import mlx.core as mx
from jaxtyping import Float
from mlx.utils import tree_flatten

from mlx_attn import blas
from mlx_attn.device import on_gpu, on_linux_cpu
from mlx_attn.exponentials import LOG2_E, exp2, over_rows
from mlx_attn.graphs import Differentiable

_of_this_thread = threading.local()
"""MLX knows a stream only in the thread that made it."""


def cores() -> int:
    """How many streams can run side by side; 1 where MLX divides the work itself."""
    return blas.preload().threads if on_linux_cpu() and not _is_traced() else 1


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
    """Return the function on one stream, for `mx.compile`: a trace allows no `async_eval`."""

    @wraps(function)
    def on_one_stream(*given: Any) -> Any:
        before = _is_traced()
        _of_this_thread.undivided = True
        try:
            return function(*given)
        finally:
            _of_this_thread.undivided = before

    return on_one_stream


def _streams(count: int) -> list[mx.Stream]:
    """The default stream and others, the same ones at every call."""
    blas.use_threads(1)
    made = _of_this_thread.__dict__.setdefault("streams", [])
    while len(made) < count - 1:
        made.append(mx.new_stream(mx.cpu))
    return [mx.default_stream(mx.cpu), *made[: count - 1]]


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
    return attend(q * (scale * LOG2_E), k, v, mask * LOG2_E)[0]


@Differentiable
def _weighed(q: mx.array, k: mx.array, v: mx.array, mask: mx.array) -> tuple[mx.array, ...]:
    """The sum, and for its gradient the contiguous heads, the powers and their sums."""
    q, k, v = (mx.contiguous(heads) for heads in (q, k, v))
    scores = _by_rows(q, k.swapaxes(2, 3)) + mask
    powers = exp2(scores - over_rows(mx.max, scores))
    total, powers = over_rows(mx.sum, powers).astype(q.dtype), powers.astype(q.dtype)
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
    dq = _by_rows(dscores, k) * (1 / LOG2_E)
    dk = _by_columns(dscores, q, k) * (1 / LOG2_E)
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
