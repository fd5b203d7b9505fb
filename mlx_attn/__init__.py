"""mlx_attn: train, sample, convert and compare tiny GPTs, one part of attention changed at a time.

From Python: `mlx_attn.load`, `mlx_attn.train` and `mlx_attn.compare`, as `mlx_attn.api` says.

Importing the package arranges that MLX finds a fast BLAS where the wheel's own is slow (see
`mlx_attn.blas`), and nothing else: every room is imported when it is first used.
"""

import sys
from typing import TYPE_CHECKING, Any

from mlx_attn import blas
from mlx_attn.about import __version__

if TYPE_CHECKING:
    from mlx_attn.api import compare, load, train

__all__ = ["__version__", "compare", "load", "train"]


if "mlx.core" in sys.modules:
    blas.preload()  # which warns where that is too late
else:
    sys.meta_path.insert(0, blas.PreloadWithMLX())


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mlx_attn import api

    return getattr(api, name)
