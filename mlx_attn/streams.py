"""Several processor cores for one computation.

On a processor MLX computes everything but matrix products with one thread per stream, and streams
run side by side. Work that can be divided is therefore divided among as many streams as OpenBLAS
has threads, and each matrix product then gets one thread of its own.
"""

import threading
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from mlx_attn import blas

_of_this_thread = threading.local()
"""MLX knows a stream only in the thread that made it."""


def cores() -> int:
    """How many streams can run side by side; 1 on a GPU, which divides the work itself."""
    divides = not getattr(_of_this_thread, "undivided", False)
    on_cpu = mx.default_device().type == mx.DeviceType.cpu
    return blas.preload().threads if on_cpu and divides else 1


def share_of_cores(pieces: int) -> int:
    """Into how many equal shares to divide so many pieces: at most one per core."""
    return max(n for n in range(1, max(1, min(cores(), pieces)) + 1) if pieces % n == 0)


def side_by_side(function: Callable[[Any], Any], parts: Sequence[Any]) -> list[Any]:
    """The function of each part, each on a stream of its own, on their way to being computed.

    Parts and results are arrays, or trees of arrays.

    MLX queues about a hundred operations ahead, so results that were begun one after the other
    would be computed so. They are begun leaf by leaf instead, the last leaves first: gradients are
    named from the first layer to the last and computed from the last to the first.
    """
    if len(parts) == 1 or cores() == 1:
        return [function(part) for part in parts]
    # A stream that needs what another computes waits for all that was begun together with it.
    mx.async_eval(*parts)
    results = []
    for stream, part in zip(_streams(len(parts)), parts, strict=True):
        with mx.stream(stream):
            results.append(function(part))
    leaves = ([array for _, array in tree_flatten([result])] for result in results)
    for same in reversed(list(zip(*leaves, strict=True))):
        mx.async_eval(*same)
    return results


def undivided(function: Callable) -> Callable:
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
