"""The first layer's values are mixed into the values of every layer (arXiv:2410.17897).

The paper leaves the first layer's values as they are; here they are multiplied by l_1 + l_2.
"""

from typing import Any

import mlx.core as mx

from mlx_attn.attention.catalog import choice, row
from mlx_attn.attention.config import AttentionConfig
from mlx_attn.attention.layer import W_VALUE, Inputs, Keys, MapWeights, Values, split_heads


def _reads_more_than_x(config: AttentionConfig) -> str:
    """Refuse a cache of x."""
    if config.score == "merged":
        return f"value={config.value} is not a function of only x, and score=merged caches only x"
    return ""


@choice(
    "value",
    "residual",
    "v_h = l_1 v_h of the first layer + l_2 x W_value_h",
    input_weights=("W_value",),
    source="value residual learning, arXiv:2410.17897",
    weights={**W_VALUE, "value_mix": lambda config: mx.array([0.5, 0.5])},  # l_1, l_2
    carries=True,
    refuses=_reads_more_than_x,
)
def residual_value(layer: MapWeights, x: Inputs, k: Keys, carry: dict[str, Any]) -> Values:
    """Mix the first layer's values into the values of every layer."""
    v = split_heads(layer.W_value(x), layer.config.n_kv_heads)  # [B, H_kv, T, D]
    first = carry.setdefault("first_values", v)  # in the first layer both terms are the same
    return layer["value_mix"][0] * first + layer["value_mix"][1] * v


row(
    "value-residual",
    "the first layer's values are mixed into every layer's, here also into its own",
    value="residual",
)
