"""A fast BLAS for MLX on Linux, loaded before MLX is.

The Linux wheel of MLX links the reference BLAS, whose matrix product is some forty times slower
than OpenBLAS. A symbol that is already loaded globally wins, so loading OpenBLAS first replaces it
and changes no other code. The system's library comes first. Without one, or with one that is
older than the processor, OpenBLAS comes from the wheel `scipy-openblas32`, which is OpenBLAS with a
prefix on every symbol: the three functions that MLX calls are compiled once, as forwarding
functions, and kept in the user's cache. On macOS MLX uses Accelerate and Metal, and this module
does nothing.
"""

import ctypes
import os
import sys
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

SWITCH = "MLX_ATTN_BLAS"
"""Environment variable: "off" leaves MLX's own BLAS in place; a path loads that library."""

_CANDIDATES = (
    "libopenblas.so.0",
    "libopenblasp.so.0",
    "libmkl_rt.so.2",
    "libmkl_rt.so.3",
    f"{sys.prefix}/lib/libmkl_rt.so.3",
)
"""The last is what `pip install mkl` leaves in a virtual environment."""
_UNKNOWN = b"Prescott"
"""The kernels, of 2004, that an OpenBLAS takes on x86-64 for a processor that it does not know."""
_WHEEL = "scipy_openblas32"
_HINT = (
    "without OpenBLAS and a C compiler training is about ten times slower here: apt install "
    "libopenblas0, or install gcc, or pip install mkl (x86-64)"
)
_TOO_LATE = "mlx was imported before mlx_attn, so its slow BLAS is in use: import mlx_attn first"

_SOURCE = Path(__file__).with_name("forward.c")
"""The forwarding functions."""


@dataclass(frozen=True, slots=True)
class Blas:
    """The library in use, or the reason why MLX keeps its own."""

    library: str | None  # None for MLX's own
    note: str  # a result, or advice
    threads: int = 1  # per matrix product; 1 if the library cannot change it
    is_slow: bool = False  # and the note says how it would be fast


_handle: ctypes.CDLL | None = None


@cache
def preload() -> Blas:
    """Load a fast BLAS into the process once, and return it."""
    wish = os.environ.get(SWITCH, "")
    if sys.platform != "linux":
        return Blas(None, "not needed on this system")
    if wish.lower() in {"off", "0", "none"}:
        return Blas(None, f"turned off by {SWITCH}={wish}")
    if "mlx.core" in sys.modules:
        warnings.warn(_TOO_LATE, stacklevel=4)
        return Blas(None, _TOO_LATE, is_slow=True)
    name = next(filter(_load, (wish,) if wish else filter(_knows_processor, _CANDIDATES)), None)
    if wish and not name:
        unknown = f"{SWITCH}={wish} cannot be loaded, so MLX's slow BLAS is in use"
        return Blas(None, f"{unknown}: name another library, or unset it", is_slow=True)
    if not name and (library := _forwarding_library()) and _load(str(library)):
        name = "scipy-openblas32"
    name = name or next(filter(_load, _CANDIDATES), None)
    if not name:
        return Blas(None, _HINT, is_slow=True)
    get_threads = _openblas("get_num_threads")
    return Blas(name, "loaded before mlx", get_threads() if get_threads else 1)


def advice() -> str:
    """Return a line if the device's products are slow and could be fast; "" otherwise."""
    loaded = preload()
    from mlx_attn.machine.device import device_name  # imports MLX, after its library was found

    return loaded.note if loaded.is_slow and device_name() == "cpu" else ""


def use_threads(count: int) -> None:
    """Set the threads of every later matrix product, if the library is OpenBLAS."""
    if set_threads := _openblas("set_num_threads"):
        set_threads(count)


@cache
def _openblas(function: str) -> Any:
    """Return a function of the loaded OpenBLAS, with or without the wheel's prefix, or None."""
    names = (f"openblas_{function}", f"scipy_openblas_{function}")
    return next((getattr(_handle, name) for name in names if hasattr(_handle, name)), None)


def _knows_processor(name: str) -> bool:
    """Return True if the library is there and has kernels for this processor."""
    try:
        library = ctypes.CDLL(name)  # for this question alone: nobody else finds its symbols
    except OSError:
        return False
    if not hasattr(library, "openblas_get_corename"):
        return True
    library.openblas_get_corename.restype = ctypes.c_char_p
    return library.openblas_get_corename() != _UNKNOWN


def _load(name: str) -> bool:
    global _handle
    try:
        _handle = ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True


def _forwarding_library() -> Path | None:
    """Return the library with the three functions, after compiling it if it is missing.

    Return None without the wheel, a C compiler or a folder to keep it in.
    """
    import shutil
    import subprocess
    from importlib.util import find_spec

    from mlx_attn.errors import RunError
    from mlx_attn.files import atomic_write, digest
    from mlx_attn.machine.folders import user_directory

    wheel, compiler = find_spec(_WHEEL), shutil.which("cc") or shutil.which("gcc")
    openblas = Path(wheel.origin if wheel and wheel.origin else "")
    openblas = openblas.parent / "lib" / "libscipy_openblas.so"
    if not openblas.exists():
        return None
    facts = f"{_SOURCE.read_text()}{openblas}{openblas.stat().st_size}{openblas.stat().st_mtime_ns}"
    target = user_directory("cache") / "blas" / f"forward-{digest(facts.encode())}.so"
    flags = ["-O2", "-shared", "-fPIC", f"-Wl,-rpath,{openblas.parent}"]
    try:
        if target.exists() or not compiler:
            return target if target.exists() else None
        with atomic_write(target) as built:  # two processes may do it at once
            command = [compiler, *flags, str(_SOURCE), str(openblas), "-o", str(built)]
            subprocess.run(command, check=True, capture_output=True, timeout=60)
    except (OSError, RunError, subprocess.SubprocessError):  # also another user's folder
        return None
    return target
