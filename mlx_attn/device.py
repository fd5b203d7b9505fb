"""Which path is taken: a GPU's, or a processor's.

On a GPU the package takes MLX's own softmax, attention, loss and GELU, on one stream, and compiles
the training step; a Linux processor has operations of its own (`mlx_attn.cpu`) and shares a batch
among its cores. Every such choice asks the two functions here.

`MLX_ATTN_CODE_PATH=gpu` takes the path of a GPU on any device, slower, so that a machine without
one can test what a Mac runs and count the kernels that it starts. What depends on the device itself
stays as it is: float64 and `mx.linalg` name the CPU stream anywhere, and a kernel of Metal's is
MLX's own fallback elsewhere.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

import mlx.core as mx

from mlx_attn.errors import ConfigError

SWITCH = "MLX_ATTN_CODE_PATH"
"""Environment variable: "gpu" takes the path of a GPU whatever the device is."""

_forced: ContextVar[bool] = ContextVar("gpu_path", default=False)


def on_gpu() -> bool:
    """Whether to take the path of a GPU: arrays are computed on one by default, or it is wished."""
    return _forced.get() or _wished() or mx.default_device().type == mx.DeviceType.gpu


def on_linux_cpu() -> bool:
    """Whether to take the path of a Linux processor."""
    return sys.platform == "linux" and not on_gpu()


@contextmanager
def gpu_path() -> Iterator[None]:
    """Take the path of a GPU for a while, in this thread."""
    before = _forced.set(True)
    try:
        yield
    finally:
        _forced.reset(before)


@cache
def _wished() -> bool:
    wish = os.environ.get(SWITCH, "")
    if wish not in ("", "gpu"):
        raise ConfigError(f"{SWITCH}={wish} must be gpu, or unset for the path of the device")
    return wish == "gpu"
