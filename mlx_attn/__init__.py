"""mlx_attn: train, sample, convert and compare tiny GPTs, one part of attention changed at a time.

Importing the package loads a fast BLAS where the wheel's own is slow (see `mlx_attn.blas`), and
nothing else: every room is imported when it is first used.
"""

from mlx_attn import blas
from mlx_attn.lazy import lazily

__version__ = "0.1.0"

blas.preload()

__getattr__ = lazily(__name__, {"convert": "lab.convert"})
