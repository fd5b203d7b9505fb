"""Train a tiny GPT: `python train.py ...` is `mlx-attn train ...`."""

import sys

from mlx_attn.cli import main

main(["train", *sys.argv[1:]])
