"""What the program says of itself: its version, and how its environment variables begin."""

__version__ = "0.1.0"

PREFIX = "MLX_ATTN_"
"""Of the environment variables that give options."""
