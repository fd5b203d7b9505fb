"""What a training may ask of this machine's memory, settled before anything is allocated.

A process that asks for too much is killed without a word; a lower bound of what a training needs
finds the settings with a zero too many.
"""

import os

import mlx.core as mx

from mlx_attn.attention.metal import on_gpu
from mlx_attn.errors import ConfigError
from mlx_attn.model.config import GPTConfig

FLOAT_BYTES = 4
BUFFERS = 2**30
"""Bytes of freed buffers that MLX may keep for the next step on a processor."""


def least_memory(model: GPTConfig, batch_size: int) -> int:
    """Bytes that a training cannot do without: n_weights * 12 + logits * 8.

    Weights of the feed-forward layers and the embedding, each with its gradient and one optimizer
    state; logits of one batch with their gradient.
    """
    feed_forward = 2 * model.n_layers * model.emb_dim * model.hidden_dim
    weights = feed_forward + model.vocab_size * model.emb_dim
    logits = batch_size * model.context_length * model.vocab_size
    return FLOAT_BYTES * (3 * weights + 2 * logits)


def machine_memory() -> int:
    """Bytes of memory that this machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def check_memory(model: GPTConfig, batch_size: int) -> None:
    """Refuse what cannot fit.

    Raises:
        ConfigError: The training needs more memory than there is.
    """
    needed, there = least_memory(model, batch_size), machine_memory()
    if needed > there:
        raise ConfigError(
            f"this training needs more than {needed / 1e9:,.0f} GB and the machine has "
            f"{there / 1e9:,.0f} GB: use fewer or narrower layers, a shorter context, or a smaller "
            "batch_size with accumulate"
        )


def keep_buffers() -> None:
    """Let MLX keep freed buffers from step to step on a processor.

    It keeps 32 MB by default and asks the system for the rest of every step's memory again; on a
    GPU it keeps all it can.
    """
    if not on_gpu():
        mx.set_cache_limit(BUFFERS)
