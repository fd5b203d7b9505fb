"""mlx_attn: train, sample, convert and compare tiny GPTs, one part of attention changed at a time.

Importing the package arranges that MLX finds a fast BLAS where the wheel's own is slow (see
`mlx_attn.blas`), and nothing else: every room is imported when it is first used.
"""

import sys

from mlx_attn import blas

__version__ = "0.1.0"

if "mlx.core" in sys.modules:
    blas.preload()  # which warns where that is too late
else:
    sys.meta_path.insert(0, blas.PreloadWithMLX())
