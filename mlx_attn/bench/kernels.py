"""How many kernels a GPU starts for one step, counted on any machine.

A GPU computes a tiny model's arrays in less time than it takes to start the kernels that do, so
their number is its time. It is counted in the graph of the path that a GPU takes
(`mlx_attn.machine.device`), after `mx.compile` has joined chains of element-wise operations where
that path compiles. An operation that computes is one kernel, a concatenation one for each of its
arrays, and what only looks at an array in another way (`VIEWS`) is none.

MLX builds other graphs for a GPU in one respect: norms, rotations, the loss, and attention of the
shapes that Metal fuses are one operation there and are spelled out elsewhere. While it is counted,
an operation that no compiler joins stands for each of their kernels.

The number is a lower bound and no time: Metal starts a second kernel for some reductions, and
copies arrays that are not contiguous where it must.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx

from mlx_attn.bench.speed import WORKLOADS, Setup, exported
from mlx_attn.errors import RunError
from mlx_attn.machine.attention_kernels import has_fused_kernel
from mlx_attn.machine.device import gpu_path
from mlx_attn.machine.graphs import has_compiler

VIEWS = frozenset(
    {
        *("AsStrided", "Broadcast", "BroadcastAxes", "Slice", "Split", "Transpose", "View"),
        *("ExpandDims", "Flatten", "Reshape", "Squeeze", "Unflatten"),
        *("Copy", "CustomTransforms", "StopGradient"),
    }
)
"""Operations that start no kernel: reshaping starts one only where memory has another order."""

_STAND_IN = "Depends"
"""The operation that stands for a kernel of `mx.fast`."""

_SEVERAL = {"DynamicSlice": 2, "DynamicSliceUpdate": 2}
"""A kernel computes the place, and another copies."""

_OPERATION = re.compile(r'(\d+) \[label ="([^"]+)", shape=rectangle')
_INPUT = re.compile(r'^".*" -> (\d+)$', re.MULTILINE)

Kernels = Counter[str]
"""How many kernels of every operation, by its name."""


def count_kernels(*outputs: mx.array) -> Kernels:
    """Return the kernels that computing these arrays, not evaluated yet, would start."""
    graph = exported(*outputs)
    inputs = Counter(_INPUT.findall(graph))
    counts: Kernels = Counter()
    for node, name in _OPERATION.findall(graph):
        if name == _STAND_IN:
            counts["mx.fast"] += 1
        elif name not in VIEWS:
            counts[name] += inputs[node] if name == "Concatenate" else _SEVERAL.get(name, 1)
    return counts


@dataclass(frozen=True, slots=True)
class KernelCount:
    """The kernels of one kind of work of one model."""

    work: str  # train, forward or decode
    name: str
    kernels: int
    # The same by operation; the name of a compiled one joins its operations.
    operations: dict[str, int]


def kernel_counts(setups: Mapping[str, Setup], works: Sequence[str]) -> Iterator[KernelCount]:
    """Count the kernels that a GPU starts for every kind of work of every model.

    Raises:
        RunError: MLX cannot compile here, so that nothing would be joined.
    """
    if not _joins():
        raise RunError(
            "MLX compiles nothing here, so no kernels would be joined: install g++ (it compiles "
            "nothing for counting), and unset MLX_DISABLE_COMPILE"
        )
    for kind in works:
        for name, (config, training) in setups.items():
            with _as_on_metal(training=kind == "train"):
                work = WORKLOADS[kind](config, replace(training, accumulate=1))
                counted = count_kernels(*work.graph())
            yield KernelCount(kind, name, counted.total(), dict(sorted(counted.items())))


def _joins() -> bool:
    twice: Any = mx.compile(lambda x: mx.exp(x) + 1)
    return has_compiler() and count_kernels(twice(mx.array([1.0]))).total() == 1


# Single operations on Metal.


_ATTENTION = "scaled_dot_product_attention"
_GRADIENT_KERNELS = {
    # 0: as many as arrays, because the gradient of a weight, or of a bias, is a sum over all rows.
    "rms_norm": 0,
    "layer_norm": 0,
    "rope": 1,
    "cross_entropy": 1,
    # Five products, the weights again, and sums over rows.
    _ATTENTION: 7,
}
"""The operations of `mx.fast` that have a kernel of their own on Metal and that this package calls,
and the kernels of their gradients, which were read in MLX's source and library."""


@contextmanager
def _as_on_metal(training: bool = False) -> Iterator[None]:
    """Build graphs with as many operations as on Metal; the numbers in them mean nothing."""
    spelled_out = {name: getattr(mx.fast, name) for name in _GRADIENT_KERNELS}

    def in_place_of(name: str) -> Callable[..., mx.array]:
        def operation(*arguments: Any, **options: Any) -> mx.array:
            if name == _ATTENTION and not _is_fused(arguments, options.get("mask"), training):
                return spelled_out[name](*arguments, **options)
            arrays = [a for a in (*arguments, *options.values()) if isinstance(a, mx.array)]
            return _stand_in(name, arrays)

        return operation

    try:
        for name in spelled_out:
            setattr(mx.fast, name, in_place_of(name))
        with gpu_path():
            yield
    finally:
        for name, function in spelled_out.items():
            setattr(mx.fast, name, function)


def _is_fused(heads: Sequence[mx.array], mask: Any, training: bool) -> bool:
    """Return True if Metal has a kernel for this attention, and in training for its gradient."""
    q, k, v = heads
    heads_per_key = q.shape[1] // k.shape[1]
    fits = q.shape[3] == v.shape[3] and has_fused_kernel(q.shape[3], q.shape[2], heads_per_key)
    return fits and not (training and isinstance(mask, mx.array))


def _stand_in(name: str, arrays: Sequence[mx.array]) -> mx.array:
    """Return an array that one operation makes, and as many as on Metal make its gradients."""
    x, *others = arrays
    shape, dtype = x.shape, x.dtype
    if name == "cross_entropy":
        shape, dtype = x.shape[:-1], mx.float32
    elif name == _ATTENTION:
        shape = (*x.shape[:-1], others[1].shape[-1])

    @mx.custom_function
    def forward(*arrays: mx.array) -> mx.array:
        return mx.depends([_blank(shape, dtype)], list(arrays))[0]

    @forward.vjp
    def backward(primals: Any, cotangent: mx.array, output: mx.array) -> tuple[mx.array, ...]:
        gradients = [_blank(array.shape, array.dtype) for array in arrays]
        for _ in range(_GRADIENT_KERNELS[name] or len(arrays)):
            gradients: Any = mx.depends(gradients, [*arrays, cotangent])
        return tuple(gradients)

    stand_in: Any = forward
    return stand_in(*arrays)


def _blank(shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    return mx.broadcast_to(mx.array(0, dtype), shape)
