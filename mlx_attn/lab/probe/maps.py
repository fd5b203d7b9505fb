"""Attention maps of a whole model: H maps per layer for H heads, one for one head.

That is why it is called multi-headed: a layer looks at the text H times, each time with its own
weights.
"""

import mlx.core as mx
import numpy as np
from jaxtyping import Float32, Integer

from mlx_attn.model import GPT
from mlx_attn.model.inspection import attention_inputs

LARGEST_REPEAT = 64


def attention_maps(
    model: GPT, tokens: Integer[np.ndarray, "B T"]
) -> Float32[np.ndarray, "L B H T T"]:
    """What every head of every layer looks at: row i is what token i looks at, and adds up to 1.

    Args:
        model: In evaluation mode.
        tokens: Token ids, no more than its context.
    """
    layers = attention_inputs(model, mx.array(tokens))
    return np.stack([np.array(layer.weights(x).astype(mx.float32)) for layer, x in layers])


def repeated_sequences(
    vocab_size: int, context_length: int, count: int = 4, seed: int = 0
) -> Integer[np.ndarray, "B T"]:
    """Random tokens, all different, and then the same once more.

    Nothing but the first reading predicts the second, so whoever does so copies: the test of Olsson
    et al. (arXiv:2209.11895) for induction heads.

    Returns:
        Sequences of 2 n tokens, with n half the context and at most `LARGEST_REPEAT`.
    """
    n = min(context_length // 2, vocab_size, LARGEST_REPEAT)
    random = np.random.default_rng(seed)
    once = np.stack([random.permutation(vocab_size)[:n] for _ in range(count)])
    return np.concatenate([once, once], axis=1)
