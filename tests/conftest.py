"""Imported before any test, and so before MLX: the package loads a fast BLAS first."""

import mlx_attn

__all__ = ["mlx_attn"]
