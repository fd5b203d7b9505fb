"""The product of query and key is trained as one matrix: S_h = W_query_h W_key_h^T."""

from typing import TypeVar

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from jaxtyping import Float

from mlx_attn.attention.catalog import FORMS, choice, row
from mlx_attn.attention.config import AttentionConfig
from mlx_attn.attention.layer import Draw, Inputs, Keys, MapWeights, Queries, split_heads

Array = TypeVar("Array", mx.array, np.ndarray)


def merge_query_key(
    W_query: Float[Array, "width C"], W_key: Float[Array, "kv_width C"], n_heads: int
) -> Float[Array, "merged C"]:
    """Return S_h = W_query_h W_key_h^T of every query head, as the weight of `S`: [H C, C].

    (x_i W_query_h) . (x_j W_key_h) = (x_i S_h) . x_j. Rows h C..(h+1) C hold head h, so that
    `x @ S.T` holds q_h in columns h C..(h+1) C. Both arguments are weights as stored. A key head
    that serves several query heads is used for each of them.
    """
    C, head_dim = W_query.shape[1], W_query.shape[0] // n_heads
    # [kv_heads, 1, K, C] and [kv_heads, H / kv_heads, K, C]: the 1 repeats a key for its queries.
    key = W_key.reshape(-1, 1, head_dim, C)
    query = W_query.reshape(key.shape[0], -1, head_dim, C)
    # As stored, (out, in): W_key_h^T W_query_h of the stored weights is the transpose of S_h.
    return (key.swapaxes(2, 3) @ query).reshape(n_heads * C, C)


def _merged_score_init(config: AttentionConfig, draw: Draw) -> dict[str, mx.array]:
    # The factors that separate maps with this seed would start with, [H D, C] and [H_kv D, C].
    query = draw("W_query", config.n_heads * config.head_dim, config.d_in)
    key = draw("W_key", config.n_kv_heads * config.head_dim, config.d_in)
    return {"S": merge_query_key(query, key, config.n_heads)}


@choice(
    "score",
    "merged",
    "q_h = x S_h, k = x",
    input_weights=("S",),
    source="algebra: S_h = W_query_h W_key_h^T",
    weights={
        "S": lambda config: nn.Linear(
            config.d_in, config.n_heads * config.d_in, bias=config.qkv_bias
        )
    },
    init=_merged_score_init,
    shape=lambda config: (1, config.d_in),
    cache="x",
)
def merged(layer: MapWeights, x: Inputs) -> tuple[Queries, Keys]:
    """Multiply by S_h, which is W_query_h W_key_h^T trained as one matrix of full rank.

    With biases, the key's bias cancels in the softmax and the query's becomes one key-side vector
    per head, which is the bias of S: score_h(i, j) = scale * (x_i S_h + u_h) . x_j.
    """
    # [B, T, H C] -> [B, H, T, C]; the key is x itself, [B, 1, T, C], which all heads share.
    return split_heads(layer["S"](x), layer.config.n_heads), x[:, None]


row(
    "merged",
    "W_query_h W_key_h^T is trained as one full-rank matrix S_h",
    group=FORMS,
    score="merged",
)
row(
    "merged-no-out-proj",
    "merged scores and no output projection",
    "q_h = x S_h, k = x, y = g concat(heads)",
    group=FORMS,
    score="merged",
    output="none",
)
