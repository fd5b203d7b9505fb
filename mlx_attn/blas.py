"""A fast BLAS for MLX on Linux, loaded before MLX is.

The Linux wheel of MLX links the reference BLAS, whose matrix product is some forty times slower
than OpenBLAS. A symbol that is already loaded globally wins, so loading OpenBLAS first replaces it
and changes no other code. On macOS MLX uses Accelerate and Metal: nothing is done there.
"""

import ctypes
import os
import sys
from dataclasses import dataclass

SWITCH = "MLX_ATTN_BLAS"
"""Environment variable: "off" leaves MLX's own BLAS in place; a path loads that library."""

_CANDIDATES = ("libopenblas.so.0", "libopenblasp.so.0", "libmkl_rt.so.2")
_HINT = "install OpenBLAS for matrix products that are many times faster: apt install libopenblas0"


@dataclass(frozen=True, slots=True)
class Blas:
    """What `preload` did: the library in use, or why there is none and what to do."""

    library: str | None
    note: str


_loaded: Blas | None = None


def preload() -> Blas:
    """Load a fast BLAS into the process once, and say which.

    Returns:
        The library loaded, or None with the reason and the way out.
    """
    global _loaded
    if _loaded is None:
        _loaded = _choose()
    return _loaded


def _choose() -> Blas:
    wish = os.environ.get(SWITCH, "")
    if sys.platform != "linux":
        return Blas(None, "not needed on this system")
    if wish.lower() in {"off", "0", "none"}:
        return Blas(None, f"turned off by {SWITCH}={wish}")
    if "mlx.core" in sys.modules:
        return Blas(None, "mlx was imported before mlx_attn: import mlx_attn first")
    for name in (wish,) if wish else _CANDIDATES:
        if _load(name):
            return Blas(name, "loaded before mlx")
    return Blas(None, f"{wish} cannot be loaded" if wish else _HINT)


def _load(name: str) -> bool:
    try:
        ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True
