"""The machine, its hardware and the versions, for the records of runs and for bug reports."""

import contextlib
import os
import platform
import resource
import sys
from collections.abc import Iterator
from functools import cache
from hashlib import blake2b
from importlib import metadata
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from mlx_attn.about import __version__
from mlx_attn.machine import blas
from mlx_attn.machine.device import device_name, on_device, on_gpu, repeats_bits
from mlx_attn.machine.folders import user_directory
from mlx_attn.machine.graphs import lacks_compiler
from mlx_attn.machine.layers import MOST_ROWS

version = cache(metadata.version)  # it reads files, and digests of trainings are made often


def versions() -> dict[str, str]:
    """Return the versions, the platform and the device of a run."""
    return {
        "mlx_attn": __version__,
        "mlx": version("mlx"),
        "numpy": version("numpy"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": device_name(),
        "products": products(),
    }


# Kernels that MLX compiles for an NVIDIA GPU would lie in /tmp, which a restart empties.
_kernels = user_directory("cache") / "kernels" / version("mlx")
os.environ.setdefault("MLX_PTX_CACHE_DIR", str(_kernels))


def machine_memory() -> int:
    """Return the bytes of memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def usable_memory() -> int:
    """Return the bytes that this process may use.

    It is the machine's memory, or a lower limit of the shell, of a container, or on a Mac's GPU the
    working set that Metal recommends; on an NVIDIA GPU its own memory.
    """
    limits = [machine_memory(), resource.getrlimit(resource.RLIMIT_AS)[0]]
    with contextlib.suppress(OSError, ValueError):  # "max": unlimited
        limits.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    facts: Any = mx.device_info() if device_name() == "gpu" else {}
    limits.append(int(facts.get("max_recommended_working_set_size", 0)))
    return int(facts.get("total_memory", 0)) or min(limit for limit in limits if limit > 0)


def chip_name() -> str:
    """Return the name of the chip that computes."""
    return str(mx.device_info().get("device_name", platform.machine()))


def machine_facts() -> dict[str, Any]:
    """Return versions, chip, memory, BLAS, and what is known of bits and Metal."""
    repeats = f"yes, up to {MOST_ROWS} tokens in the vocabulary" if on_gpu() else "yes"
    loaded = blas.preload()
    return versions() | {
        "metal": mx.metal.is_available(),
        "chip": chip_name(),
        "memory_bytes": machine_memory(),
        "blas": loaded.library or ("Accelerate" if sys.platform == "darwin" else "MLX's own"),
        "blas_note": loaded.note,
        "same_bits_twice": repeats if repeats_bits() else "not known",
    }


@cache
def source_digest() -> str:
    """Return a digest of the package's files: other code may have the same version number."""
    package, content = Path(__file__).parents[1], blake2b(digest_size=6)
    for path in sorted(package.rglob("*")):
        if path.is_file() and path.suffix != ".pyc" and not path.name.startswith("."):
            name = path.relative_to(package).as_posix()
            content.update(name.encode() + blake2b(path.read_bytes()).digest())
    return content.hexdigest()


def arithmetic() -> dict[str, str]:
    """Return the facts, apart from the settings, that decide the losses of a training."""
    is_compiled = not lacks_compiler() and "MLX_DISABLE_COMPILE" not in os.environ
    return {
        "the source of mlx_attn": source_digest(),
        "mlx": version("mlx"),
        "the device": device_name(),
        "the rounding of products": products(),
        "compilation": "on" if is_compiled else "off",
    }


FLOAT32, TF32 = 1e-5, 1e-3
"""Most error of a product in either format. MLX rounds factors to TF32 on newer Apple and NVIDIA
GPUs, unless `MLX_ENABLE_TF32=0` when a process computes its first product."""

_SWITCH = "MLX_ENABLE_TF32"


def products() -> str:
    """Return the type to which this process rounds the factors of products: float32 or TF32."""
    return _products(device_name())


@cache
def _products(device: str) -> str:
    return "float32" if product_error() <= FLOAT32 else "TF32"


@contextlib.contextmanager
def exact_products() -> Iterator[None]:
    """Compute products in float32 for a while: on the processor, if the GPU has begun with TF32."""
    os.environ[_SWITCH] = "0"
    if products() == "float32":
        yield
        return
    os.environ[_SWITCH] = "1"  # processes that this one starts compute as it does
    with on_device("cpu"):
        yield


def product_error() -> float:
    """Return the error of a float32 product, as root mean square relative to the result's.

    It is about 3e-7 in float32, 3e-4 in TF32 (10 bits after the point), 2e-3 in bfloat16 (7 bits).
    """
    a, b = np.random.default_rng(0).standard_normal((2, 256, 256)).astype(np.float32)
    exact = a.astype(np.float64) @ b
    return float(np.std(np.array(mx.array(a) @ mx.array(b)) - exact) / np.std(exact))
