"""The difference of two softmaxes over the same keys and values (Microsoft, 2026, version 2).

head_h = softmax(q_2h k_h^T) v_h - sigmoid(x W_lambda)_h softmax(q_2h+1 k_h^T) v_h
"""

import mlx.core as mx
import mlx.nn as nn

from mlx_attn.attention.catalog import choice, row
from mlx_attn.attention.layer import (
    OUT_PROJ,
    W_KEY,
    Heads,
    Inputs,
    Keys,
    MapWeights,
    Outputs,
    Queries,
    projection,
    split_heads,
)
from mlx_attn.attention.maps import linear_output

_PAIRED = (
    "score=paired makes two queries for each head and output=differential subtracts them, so each "
    "needs the other: use --variant differential, or neither"
)


@choice(
    "score",
    "paired",
    "q_2h, q_2h+1 = x W_query, k_h = x W_key_h",
    input_weights=("W_query", "W_key"),
    source="differential attention, version 2 (Microsoft, 2026)",
    weights={
        "W_query": lambda config: projection(config, 2 * config.n_heads * config.head_dim),
        **W_KEY,
    },
    queries_per_head=2,
    affine=False,
    refuses=lambda config: "" if config.output == "differential" else _PAIRED,
)
def paired(layer: MapWeights, x: Inputs) -> tuple[Queries, Keys]:
    """Make two queries for each head, which share its key and its value."""
    # [B, 2 H, T, D]: heads 2h and 2h + 1 are the pair of head h.
    q = split_heads(layer.W_query(x), 2 * layer.config.n_heads)
    return q, split_heads(layer.W_key(x), layer.config.n_kv_heads)


@choice(
    "output",
    "differential",
    "y = concat(head_2h - sigmoid(x W_lambda)_h head_2h+1) out_proj",
    source="differential attention, version 2 (Microsoft, 2026)",
    weights={
        **OUT_PROJ,
        "W_lambda": lambda config: nn.Linear(config.d_in, config.n_heads, bias=False),  # C -> H
    },
    affine=False,
    refuses=lambda config: "" if config.score == "paired" else _PAIRED,
)
def differential_output(layer: MapWeights, heads: Heads, x: Inputs) -> Outputs:
    """Subtract two softmaxes over the same keys and values."""
    weight = split_heads(mx.sigmoid(layer["W_lambda"](x)), layer.config.n_heads)  # [B, H, T, 1]
    # [B, 2 H, T, D] -> [B, H, T, D]
    return linear_output(layer, heads[:, ::2] - weight * heads[:, 1::2], x)


row(
    "differential",
    "the difference of two softmaxes over the same keys and values",
    "y = concat(head_2h - sigmoid(x W_lambda)_h head_2h+1) out_proj",
    score="paired",
    output="differential",
)
