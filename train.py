"""Train a tiny GPT: `python train.py ...` is `mlx-attn train ...`."""

import sys

from mlx_attn.__main__ import main

if __name__ == "__main__":  # not in the processes that tokenize a long text
    main("train", *sys.argv[1:])
