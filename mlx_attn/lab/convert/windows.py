"""The windows of a text on which models are compared."""

from collections.abc import Iterator

import mlx.core as mx
import numpy as np
from jaxtyping import Integer

from mlx_attn.text.corpus import Split
from mlx_attn.training.tokens import read_windows

LOGITS_AT_ONCE = 2**24
"""Of a batch: 134 MB in float64."""


def some_windows(split: Split, context_length: int, n_tokens: int) -> Integer[mx.array, "B T"]:
    """Windows spread evenly over a text, of about so many tokens together."""
    available = len(split.tokens) // context_length
    count = max(1, min(available, n_tokens // context_length))
    starts = mx.linspace(0, len(split.tokens) - context_length, count).astype(mx.int32)
    return mx.array(read_windows(split.tokens, np.array(starts, np.int64), context_length))


def batches(
    windows: Integer[mx.array, "B T"], vocab_size: int
) -> Iterator[Integer[mx.array, "batch T"]]:
    """The windows, as many at a time as memory has room for their logits."""
    size = max(1, LOGITS_AT_ONCE // (windows.shape[1] * vocab_size))
    for start in range(0, len(windows), size):
        yield windows[start : start + size]
