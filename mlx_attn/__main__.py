"""`python -m mlx_attn` is `mlx-attn`."""

from mlx_attn.cli import main

main()
