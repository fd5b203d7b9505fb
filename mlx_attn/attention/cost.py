"""What one attention layer costs: parameters, multiply-adds and cache, counted and not estimated.

A multiply-add is counted for every weight of a matrix that a token meets, and for every score and
every weighted value over a full context of T tokens (the causal half is computed too).
"""

from dataclasses import dataclass

import mlx.core as mx

from mlx_attn.attention.config import AttentionConfig
from mlx_attn.attention.module import Attention
from mlx_attn.attention.score import SCORES
from mlx_attn.attention.value import value_of
from mlx_attn.trees import named_arrays


@dataclass(frozen=True, slots=True)
class AttentionCost:
    """The cost of one layer.

    Attributes:
        parameters: Trained numbers.
        multiply_adds: Per token, at full context, in the form used for training.
        cache_floats: Numbers remembered per token when decoding.
    """

    parameters: int
    multiply_adds: int
    cache_floats: int


def attention_cost(config: AttentionConfig) -> AttentionCost:
    """Count one layer of this configuration, from the shapes of its maps."""
    matrices, others = _weights(config)
    value_heads, value_width = value_of(config).shape(config)
    key_heads, key_width = SCORES[config.score].key_shape(config)
    per_token = config.n_heads * config.context_length * (key_width + value_width)
    key_floats, value_floats = key_heads * key_width, value_heads * value_width
    remembers_value = config.score != "merged" and config.value not in ("key", "from_key")
    return AttentionCost(
        parameters=matrices + others,
        multiply_adds=matrices + per_token,
        cache_floats=key_floats + (value_floats if remembers_value else 0),
    )


def _weights(config: AttentionConfig) -> tuple[int, int]:
    """Numbers in matrices that multiply a token, and in everything else."""
    sizes = {name: array.size for name, array in _trained(config).items()}
    matrices = sum(size for name, size in sizes.items() if name.endswith("weight"))
    return matrices, sum(sizes.values()) - matrices


def _trained(config: AttentionConfig) -> dict[str, mx.array]:
    return named_arrays(Attention(config).trainable_parameters())
