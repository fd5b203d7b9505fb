"""Work shared among the cores of a Linux processor, and compiled steps.

A GPU and a Mac's processor divide their work themselves, on one stream.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from itertools import islice, zip_longest
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map

from mlx_attn.machine import blas
from mlx_attn.machine.device import compiles_slowly, on_gpu, on_linux_cpu, on_nvidia
from mlx_attn.machine.facts import usable_memory
from mlx_attn.machine.graphs import compiled, has_compiler


class _ThisThread(threading.local):
    """MLX accepts a stream only in the thread that created it."""

    def __init__(self):
        self.undivided = False  # while MLX traces a function to compile it
        self.streams: list[mx.Stream] = []  # all but the default one


_this_thread = _ThisThread()


def cores() -> int:
    """Return how many streams can run in parallel; 1 if MLX divides the work itself."""
    return blas.preload().threads if on_linux_cpu() and not _this_thread.undivided else 1


def split_among_cores(array: mx.array, most: int = 2**63) -> list[mx.array]:
    """Split the first axis into nearly equal shards, at most `most` and one per core."""
    shards = max(1, min(cores(), len(array), most))
    return array.split(tuple(len(array) * i // shards for i in range(1, shards)))


def parallel_map(function: Callable[[Any], Any], parts: Sequence[Any]) -> list[Any]:
    """Map a function over parts, each on its own stream; the results are being computed.

    Parts and results are arrays, or trees of arrays.

    MLX queues about a hundred operations ahead, so results started one by one would also be
    computed one by one. Instead they are started leaf by leaf, the last leaves first:
    gradients are named from the first layer to the last and computed from the last to the first.
    For one part this order saves memory: a layer frees its activations before the next one starts.
    """
    if on_gpu() or _this_thread.undivided:
        return [function(part) for part in parts]
    streams = [mx.default_stream(mx.cpu)] * len(parts)
    if len(parts) > 1 and cores() > 1:
        blas.use_threads(1)
        others = _this_thread.streams
        while len(others) < len(parts) - 1:
            others.append(mx.new_stream(mx.cpu))
        streams[1:] = others[: len(parts) - 1]
    # A stream that needs what another computes waits for all that was begun together with it.
    mx.async_eval(*parts)
    results = []
    for stream, part in zip(streams, parts, strict=True):
        with mx.stream(stream):
            results.append(function(part))
    leaves = [dict(tree_flatten([result])).values() for result in results]
    # A smaller part may have fewer; MLX ignores the None in their places.
    for same in reversed(list(zip_longest(*leaves))):
        mx.async_eval(*same)
    return results


def in_turns(
    function: Callable[[Any], Any], parts: Iterable[Any], at_once: int = 2
) -> Iterator[Any]:
    """Map a function over parts, so many at a time: at least one on each core.

    Parts are taken when their turn comes, so the memory of earlier ones is free again.
    """
    parts = iter(parts)
    while turn := list(islice(parts, max(at_once, cores()))):
        yield from parallel_map(function, turn)


Gradients = Callable[..., tuple[mx.array, dict]]
MOST_COPIED = 2**29  # the most gradient numbers, summed over all shards: 2 GB


def shard_batch(
    gradients: Gradients, weight: Callable[[Any], mx.array], n_weights: int
) -> Gradients:
    """Return a function with the same mean loss and gradients, a shard of the batch on each core.

    The loss is a mean over tokens, so it equals the sum of the shards' losses, each weighted by the
    shard's fraction of the tokens. `gradients` returns the mean loss of a batch times a weight, and
    `n_weights` gradients; `weight` returns a number in proportion to the tokens in the mean.
    """

    def sharded(batch: Sequence[mx.array]) -> tuple[mx.array, dict]:
        # Each shard has gradients of its own until they are added up.
        most = MOST_COPIED // n_weights
        # Along the first axis: [B, ...] -> shards of [about B / shards, ...]
        parts = list(zip(*(split_among_cores(array, most) for array in batch), strict=True))
        if len(parts) == 1:
            return parallel_map(gradients, [batch])[0]
        # [shards]: they differ by a window, and a task may score other numbers of tokens in each.
        weights = mx.stack([weight(part) for part in parts])
        weights = weights / mx.maximum(weights.sum(), 1)
        # The weighted losses and gradients of the shards only need to be added.
        pairs = list(zip(parts, weights, strict=True))
        results = parallel_map(lambda part: gradients(*part), pairs)
        return reduce(partial(tree_map, mx.add), results)

    return sharded


@contextmanager
def single_stream() -> Iterator[None]:
    """Compute on one stream, as `mx.compile` asks: a trace allows no `async_eval`."""
    before = _this_thread.undivided
    _this_thread.undivided = True
    try:
        yield
    finally:
        _this_thread.undivided = before


def keep_buffers() -> None:
    """Let MLX keep freed buffers, up to a quarter of the memory, from step to step on a processor.

    By default it keeps 32 MB and requests the rest again for every step. A GPU needs no change. A
    training beside others keeps 1 GB, because a quarter each could be all of the memory.
    """
    if not on_gpu():
        mx.set_cache_limit(2**30 if _this_thread.undivided else usable_memory() // 4)


def compiles_step(setting: str) -> bool:
    """Return True if a training's step is one compiled graph; `setting` is auto, on or off."""
    is_quick = on_gpu() and not compiles_slowly()
    return {"auto": is_quick, "on": not on_linux_cpu(), "off": False}[setting]


def parts_take_less() -> bool:
    """Return False on a GPU, on which a part of a batch may take as long as all of it."""
    return not on_gpu()


def first_step_compiles(setting: str) -> bool:
    """Return True if the first step takes longer; an NVIDIA GPU compiles a few kernels anyway."""
    return on_nvidia() or setting == "on" or compiles_step(setting)


def compiled_step(function: Callable, setting: str, state: list) -> Callable:
    """Return the function as one compiled graph, if steps are compiled; `state` changes in it."""
    if not compiles_step(setting):
        return function
    return compiled(single_stream()(function), inputs=state, outputs=state)


def compiled_part(function: Callable, setting: str, state: list) -> Callable:
    """Return a part of a step compiled, which a Linux processor does instead of whole steps.

    Every part keeps its own stream. "auto" does not compile; a new run asks for it if
    `compiling_pays`.
    """
    if not on_linux_cpu() or setting != "on":
        return function
    return compiled(single_stream()(function), inputs=state, outputs=state)


LONG, LONG_ON_GPU = 1e12, 3e14
"""Multiply-adds of a long training: of half a minute on a core, of five minutes on an H100.

Compiling takes some seconds on a processor and 40 to 70 on an NVIDIA GPU, once on a machine, and
then a tenth to a fifth of a step is saved (docs/performance.md)."""


def compiling_pays(multiply_adds: float, minutes: float) -> bool:
    """Return True if a device that compiles slowly saves more time than compiling takes."""
    if on_nvidia():
        return multiply_adds > LONG_ON_GPU or minutes > 5
    is_long = multiply_adds > LONG * cores() or minutes > 0.5
    return on_linux_cpu() and has_compiler() and is_long


def concurrent_trainings(cores: int) -> int:
    """Return how many trainings run at once: one on a GPU, otherwise one for each core."""
    return 1 if on_gpu() else cores
