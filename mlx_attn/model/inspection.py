"""A look inside a model while it reads."""

from collections.abc import Iterator

import mlx.core as mx
from jaxtyping import Float, Integer

from mlx_attn.attention import Attention
from mlx_attn.model.gpt import GPT


def attention_inputs(
    model: GPT, tokens: Integer[mx.array, "B T"]
) -> Iterator[tuple[Attention, Float[mx.array, "B T C"]]]:
    """Each attention layer, the first one first, with the x that it reads; lazily."""
    x = model.drop_emb(model.embed(tokens))
    for block in model.trf_blocks:
        yield block.att, block.norm1(x)
        x = block(x)
