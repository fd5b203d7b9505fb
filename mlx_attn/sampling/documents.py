"""The beginning of documents in a run's training text, and the loss of a text.

A model that has only seen stories after a line break expects one before a prompt. The tokens of
that start come before every text that is read as a document of its own.
"""

import math
from collections.abc import Sequence

import mlx.core as mx

from mlx_attn.errors import ConfigError
from mlx_attn.machine.operations import cross_entropy
from mlx_attn.model.gpt import GPT
from mlx_attn.text import sources
from mlx_attn.text.tokenizers import Tokenizer


def start_tokens(tokenizer: Tokenizer, corpus: str) -> list[int]:
    """Return the tokens before each document of the corpus by name; none in a plain text."""
    start, _ = sources.document_edges(corpus)
    try:
        return tokenizer.encode(start).tolist() if start else []
    except ConfigError:  # a vocabulary from elsewhere, which lacks them
        return []


def begin(tokens: Sequence[int], start: Sequence[int], longest: int) -> list[int]:
    """Return tokens with the document's start before them, if they lack it and it fits.

    A model would not see the beginning of a text that is longer than `longest` anyway.
    """
    tokens, start = list(tokens), list(start)
    if tokens[: len(start)] == start or len(start) + len(tokens) > longest:
        return tokens
    return start + tokens


def text_loss(model: GPT, tokens: list[int], count: int) -> float:
    """Return the mean loss in nats of the last `count` tokens, given those before them.

    The very first token has nothing before it and does not count: a single token has the loss NaN.
    """
    if len(tokens) < 2:
        return math.nan
    row = mx.array(tokens)[None]
    # [1, T - 1, V], of which the last `count` are scored.
    logits = model(row[:, :-1])[:, -count:].astype(mx.float32)
    losses: list[float] = cross_entropy(logits, row[:, -logits.shape[1] :])[0].tolist()  # type: ignore[assignment]
    return math.fsum(losses) / len(losses)
