"""The program's version, and the prefix of its environment variables."""

__version__ = "0.1.0"

PREFIX = "MLX_ATTN_"
"""Of the environment variables that give options."""
