"""A fast BLAS for MLX on Linux, loaded before MLX is.

The Linux wheel of MLX links the reference BLAS, whose matrix product is some forty times slower
than OpenBLAS. A symbol that is already loaded globally wins, so loading OpenBLAS first replaces it
and changes no other code. The system's library is taken where there is one, and the one in the
wheel `scipy-openblas32` where there is none. On macOS MLX uses Accelerate and Metal: nothing is
done there.
"""

import ctypes
import os
import sys
import warnings
from dataclasses import dataclass
from typing import Any

from mlx_attn.blas_wheel import forwarding_library

SWITCH = "MLX_ATTN_BLAS"
"""Environment variable: "off" leaves MLX's own BLAS in place; a path loads that library."""

_CANDIDATES = ("libopenblas.so.0", "libopenblasp.so.0", "libmkl_rt.so.2")
_HINT = "install OpenBLAS for matrix products that are many times faster: apt install libopenblas0"
_TOO_LATE = "mlx was imported before mlx_attn, so its slow BLAS is in use: import mlx_attn first"


@dataclass(frozen=True, slots=True)
class Blas:
    """What `preload` did: the library in use, or why there is none and what to do.

    Attributes:
        library: Its name; None where MLX's own is in use.
        note: What was done, or what to do.
        threads: Threads of a matrix product, where that can be changed; 1 elsewhere.
    """

    library: str | None
    note: str
    threads: int = 1


_loaded: Blas | None = None
_handle: ctypes.CDLL | None = None


def preload() -> Blas:
    """Load a fast BLAS into the process once, and say which.

    Returns:
        The library loaded, or None with the reason and the way out.
    """
    global _loaded
    if _loaded is None:
        _loaded = _choose()
    return _loaded


def use_threads(count: int) -> None:
    """Give every matrix product from now on so many threads, where the library is OpenBLAS."""
    if set_threads := _openblas("set_num_threads"):
        set_threads(count)


def _choose() -> Blas:
    wish = os.environ.get(SWITCH, "")
    if sys.platform != "linux":
        return Blas(None, "not needed on this system")
    if wish.lower() in {"off", "0", "none"}:
        return Blas(None, f"turned off by {SWITCH}={wish}")
    if "mlx.core" in sys.modules:
        warnings.warn(_TOO_LATE, stacklevel=4)
        return Blas(None, _TOO_LATE)
    for name in (wish,) if wish else _CANDIDATES:
        if _load(name):
            return _in_use(name)
    return Blas(None, f"{wish} cannot be loaded") if wish else _from_wheel()


def _from_wheel() -> Blas:
    library = forwarding_library()
    if library and _load(str(library)):
        return _in_use("scipy-openblas32")
    return Blas(None, _HINT)


def _in_use(name: str) -> Blas:
    get_threads = _openblas("get_num_threads")
    return Blas(name, "loaded before mlx", get_threads() if get_threads else 1)


def _openblas(function: str) -> Any:
    """A function of OpenBLAS, or of the one in the wheel; None where there is none."""
    names = (f"openblas_{function}", f"scipy_openblas_{function}")
    return next((getattr(_handle, name) for name in names if hasattr(_handle, name)), None)


def _load(name: str) -> bool:
    global _handle
    try:
        _handle = ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True
