"""The device that computes, and which path the package takes on it.

MLX has up to two devices, the processor ("cpu") and a GPU ("gpu"), and takes the GPU if there is
one. `use_device` chooses, as `--device` and `MLX_ATTN_DEVICE` do. There are three paths:

- "gpu": MLX's own softmax, attention, loss and GELU, on one stream; the training step is
  compiled, on an NVIDIA GPU only in long runs.
- "linux-cpu": operations of the package's own (`operations.py`), and a batch is shared among the
  cores (`streams.py`).
- "mac-cpu": MLX's own operations, only decoding is compiled, and Accelerate multiplies matrices.

Every choice between them asks `on_gpu` and `on_linux_cpu`. `MLX_ATTN_CODE_PATH` forces "gpu" or
"mac-cpu" on any device, more slowly, so that a Linux machine can test a Mac's path. The device
itself does not change: float64 and `mx.linalg` name the CPU stream everywhere, and without Metal
its kernels are MLX's fallbacks.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import mlx.core as mx

from mlx_attn.errors import ConfigError

SWITCH = "MLX_ATTN_CODE_PATH"  # environment variable: gpu or mac-cpu, on any device
DEVICE = "MLX_ATTN_DEVICE"  # environment variable: cpu or gpu; read with this module

_forced: ContextVar[str] = ContextVar("code_path", default="")


def devices() -> list[str]:
    """Return the names of the devices that MLX can use here."""
    return ["cpu", *(["gpu"] if mx.is_available(mx.gpu) else [])]


def device_name() -> str:
    """Return the name of the device that computes by default."""
    return mx.default_device().type.name


def use_device(name: str) -> None:
    """Compute on this device from now on, here and in child processes.

    Raises:
        ConfigError: The device is unknown, or MLX cannot use it here.
    """
    if name not in ("cpu", "gpu"):
        raise ConfigError(f"unknown device '{name}' (--device, {DEVICE}): choose cpu or gpu")
    if name not in devices():
        raise ConfigError(
            "MLX finds no GPU on this machine: choose cpu, or leave the choice out (--device, "
            f"{DEVICE}); a GPU is taken if there is one"
        )
    os.environ[DEVICE] = name
    mx.set_default_device(getattr(mx, name))


def chosen_device() -> str:
    """Return the device that `use_device` or the environment chose; "" if neither did."""
    return os.environ.get(DEVICE, "")


def float64() -> AbstractContextManager[Any]:
    """Compute float64 for a while: on the processor, because Metal cannot."""
    return mx.stream(mx.cpu)


@contextmanager
def on_device(name: str) -> Iterator[None]:
    """Compute on this device for a while, in all threads."""
    before = mx.default_device()
    mx.set_default_device(getattr(mx, name))
    try:
        yield
    finally:
        mx.set_default_device(before)


def code_path() -> str:
    """Return the path to take: gpu, linux-cpu or mac-cpu."""
    if forced := _forced.get() or _wished():
        return forced
    if mx.default_device().type == mx.DeviceType.gpu:
        return "gpu"
    return "linux-cpu" if sys.platform == "linux" else "mac-cpu"


@cache
def _wished() -> str:
    wish = os.environ.get(SWITCH, "")
    if wish not in ("", "gpu", "mac-cpu"):
        raise ConfigError(
            f"{SWITCH}={wish} must be gpu or mac-cpu, or unset for the path of the device"
        )
    return wish


def on_gpu() -> bool:
    """Return True on the path of a GPU."""
    return code_path() == "gpu"


def on_nvidia() -> bool:
    """Return True on an NVIDIA GPU, which takes the path of a GPU."""
    return on_gpu() and mx.cuda.is_available()


def on_linux_cpu() -> bool:
    """Return True on the path of a Linux processor."""
    return code_path() == "linux-cpu"


def compiles_slowly() -> bool:
    """Return True if MLX needs half a second to three for each chain of operations it compiles.

    On a Linux processor `g++` compiles, on an NVIDIA GPU CUDA's compiler, once per machine.
    """
    return on_linux_cpu() or on_nvidia()


def repeats_bits() -> bool:
    """Return True if two trainings of one seed have the same bits on this device.

    So it is on Linux: on a processor always, on an NVIDIA GPU for every form, with a vocabulary for
    which `layers.TokenTable` needs no scatter. Nobody has tried Metal.
    """
    return sys.platform == "linux"


@contextmanager
def forced_path(name: str) -> Iterator[None]:
    """Take the path of a GPU, or of a Mac's processor, for a while, in this thread."""
    before = _forced.set(name)
    try:
        yield
    finally:
        _forced.reset(before)


if chosen_device():
    use_device(chosen_device())
