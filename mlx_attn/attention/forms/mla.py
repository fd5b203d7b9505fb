"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): keys and values of one latent.

    c = x W_latent        k_h = c W_up_key_h        v_h = c W_up_value_h

Decoding caches only c, which is narrower than the keys and values of all heads. It is the book's
simplified form: DeepSeek's also normalizes c, has a rotary part of the key, and a latent of q.
"""

import mlx.core as mx
import mlx.nn as nn
from jaxtyping import Float

from mlx_attn.attention.catalog import choice, row
from mlx_attn.attention.config import AttentionConfig
from mlx_attn.attention.layer import (
    W_QUERY,
    Inputs,
    Keys,
    MapWeights,
    Queries,
    Values,
    matrix_of,
    split_heads,
)
from mlx_attn.attention.maps import linear_after


def _latent_refuses(config: AttentionConfig) -> str:
    if config.rotates or config.qk_norm:
        return (
            "the latent of score=latent is not a key of its own: it cannot be rotated or "
            "normalized, use learned or alibi positions without qk_norm"
        )
    if (config.score == "latent") != (config.value == "latent"):
        return "score=latent and value=latent share one latent: use --variant mla, or neither"
    if config.n_kv_heads != config.n_heads:
        return (
            f"score=latent has a key per head, so n_kv_heads={config.n_kv_heads} must be "
            f"{config.n_heads}"
        )
    return ""


@choice(
    "score",
    "latent",
    "c = x W_latent, q_h = x W_query_h W_up_key_h^T, k = c",
    source="multi-head latent attention, DeepSeek-V2, arXiv:2405.04434",
    weights={
        **W_QUERY,
        "W_latent": lambda config: nn.Linear(config.d_in, config.latent_dim, bias=False),  # C -> L
        "W_up_key": lambda config: nn.Linear(
            config.latent_dim, config.n_heads * config.head_dim, bias=False
        ),
    },
    shape=lambda config: (1, config.latent_dim),
    refuses=_latent_refuses,
)
def latent_score(layer: MapWeights, x: Inputs) -> tuple[Queries, Keys]:
    """Read keys and values from one narrow latent c, which is all that decoding keeps.

    The absorbed form: (x W_query_h) . (c W_up_key_h) = (x W_query_h W_up_key_h^T) . c, so that c
    is the one key of all heads.
    """
    H, D, L = layer.config.n_heads, layer.config.head_dim, layer.config.latent_dim
    q = split_heads(layer.W_query(x), H)  # [B, H, T, D]
    up_key = matrix_of(layer["W_up_key"], L)[0].reshape(H, D, L)
    # [B, H, T, D] x [H, D, L] -> [B, H, T, L]; the key is c, [B, 1, T, L].
    return q @ up_key, layer["W_latent"](x)[:, None]


@choice(
    "value",
    "latent",
    "v_h = c W_up_value_h",
    source="multi-head latent attention, DeepSeek-V2, arXiv:2405.04434",
    weights={
        "W_up_value": lambda config: nn.Linear(
            config.latent_dim, config.n_kv_heads * config.value_dim, bias=False
        )
    },
    after=lambda layer, y: linear_after(layer, y, "W_up_value"),
    cache="k",
    refuses=_latent_refuses,
)
def latent_value(layer: MapWeights, latent: Float[mx.array, "B T L"], k: Keys) -> Values:
    """Return the values of the latent c, which the cache holds."""
    return split_heads(layer["W_up_value"](latent), layer.config.n_kv_heads)  # [B, H, T, D]


row(
    "mla",
    "keys and values of one narrow latent, which alone is cached; DeepSeek's has a norm and RoPE",
    "c = x W_latent, k_h = c W_up_key_h, v_h = c W_up_value_h",
    score="latent",
    value="latent",
)
