"""The maps of the standard layer: their formulas, their weights, their computation.

    score: x -> queries and keys        value: x -> values        output: heads -> y

Between score and value are two hooks, w_h = mixing(logits(score_h) + mask). Weights are attributes
of the layer, under the book's names, so that a checkpoint reads like the book. All other choices
are in `forms`.
"""

from typing import Any

import mlx.core as mx
from jaxtyping import Float

from mlx_attn.attention.catalog import FORMS, choice, row
from mlx_attn.attention.layer import (
    OUT_PROJ,
    W_KEY,
    W_QUERY,
    W_VALUE,
    Heads,
    Inputs,
    Keys,
    MapWeights,
    Outputs,
    Queries,
    Scores,
    Values,
    matrix_of,
    merge_heads,
    split_heads,
)
from mlx_attn.machine.operations import softmax


@choice(
    "score",
    "separate",
    "q_h = x W_query_h, k_h = x W_key_h",
    input_weights=("W_query", "W_key"),
    source="the book, section 3.6",
    weights=W_QUERY | W_KEY,
)
def separate(layer: MapWeights, x: Inputs) -> tuple[Queries, Keys]:
    """Compute the book's form: S_h = W_query_h W_key_h^T has rank at most head_dim."""
    q = split_heads(layer.W_query(x), layer.config.n_heads)  # [B, T, C] -> [B, H, T, D]
    return q, split_heads(layer.W_key(x), layer.config.n_kv_heads)


# Value maps. A map can be applied to x before the weighted sum or to softmax_h x after it: the sum
# is linear and its weights add up to 1, so biases too come out the same.


def linear_after(layer: MapWeights, y: Float[mx.array, "B H T C"], name: str = "W_value") -> Heads:
    """Apply W_value, or another weight, to the weighted sums of x, head by head."""
    H_kv, group = layer.config.n_kv_heads, y.shape[1] // layer.config.n_kv_heads
    weight, bias = matrix_of(layer[name], y.shape[-1])
    weight = weight.reshape(H_kv, layer.config.value_dim, -1)  # [H_kv, D, C]
    # [B, H, T, C] x [H, C, D] -> [B, H, T, D]
    heads = y @ mx.repeat(weight, group, axis=0).swapaxes(1, 2)
    return heads if bias is None else heads + mx.repeat(bias.reshape(H_kv, 1, -1), group, axis=0)


@choice(
    "value",
    "linear",
    "v_h = x W_value_h",
    input_weights=("W_value",),
    source="the book, section 3.6",
    weights=W_VALUE,
    after=linear_after,
)
def linear_value(layer: MapWeights, x: Inputs, k: Keys) -> Values:
    """Apply W_value to x and cut the result into heads."""
    return split_heads(layer.W_value(x), layer.config.n_kv_heads)  # [B, T, C] -> [B, H_kv, T, D]


@choice(
    "output",
    "linear",
    "y = concat(heads) out_proj",
    input_weights=(),
    source="the book, section 3.6",
    weights=OUT_PROJ,
)
def linear_output(layer: MapWeights, heads: Heads, x: Any) -> Outputs:
    """Apply out_proj to the concatenated heads; O_h are its rows that read head h."""
    return layer.out_proj(merge_heads(heads))  # [B, H, T, D] -> [B, T, H D] -> [B, T, d_out]


choice("logits", "none", "s_h = score_h")(lambda layer, s: s)


@choice("mixing", "softmax", "w_h = softmax(s_h)", sums_to_one=True, shift_invariant=True)
def softmax_weights(layer: MapWeights, s: Scores) -> Scores:
    """Compute the standard weights: positive, with sum 1."""
    return softmax(s)  # e^-inf = 0 hides later keys


row(
    "standard",
    "the book's multi-head attention",
    "q = x W_query, k = x W_key, v = x W_value, y = concat(heads) out_proj",
    group=FORMS,
)
