"""`python -m mlx_attn` is `mlx-attn`."""

from mlx_attn.cli.main import main

main()
