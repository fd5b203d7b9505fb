"""Models in and out: the book's checkpoints, GPT-2, nanoGPT, mlx-lm, transformers."""
