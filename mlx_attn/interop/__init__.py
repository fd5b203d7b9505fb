"""Models in and out: the book's checkpoints, GPT-2, mlx-lm, transformers, GGUF, TransformerLens."""
