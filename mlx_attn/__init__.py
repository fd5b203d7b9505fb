"""mlx_attn: train, sample, convert and compare tiny GPTs, one part of attention changed at a time.

Importing the package loads a fast BLAS where the wheel's own is slow (see `mlx_attn.blas`), and
nothing else: every room is imported when it is first used.
"""

import importlib
from typing import Any

from mlx_attn import blas

__version__ = "0.1.0"

_LAZY = {"convert": "mlx_attn.lab.convert"}
"""Names of the package's own, and the room that each is imported from when it is first used."""

blas.preload()


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'mlx_attn' has no attribute {name!r}")
