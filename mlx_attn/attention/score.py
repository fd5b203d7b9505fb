"""The score map: how x becomes queries and keys.

    score_h(i, j) = scale * x_i S_h x_j^T

Each choice says which layers it needs, how they start, and its formula. A choice holds no weights:
they live in the attention module under the book's names, so that a checkpoint reads like the book.
"""

from typing import Any, Protocol, runtime_checkable

import mlx.core as mx
import mlx.nn as nn
from jaxtyping import Float

from mlx_attn.attention.algebra import merge_query_key
from mlx_attn.attention.config import AttentionConfig
from mlx_attn.attention.heads import split_heads
from mlx_attn.attention.initialisation import Draw, factor_spread, start_merged
from mlx_attn.attention.shrunk import ShrunkLinear

Queries = Float[mx.array, "B H T D"]
Keys = Float[mx.array, "B key_heads T D"]


@runtime_checkable
class Score(Protocol):
    """One way to make queries and keys."""

    def layers(self, config: AttentionConfig) -> dict[str, Any]:
        """The trained parts by name."""
        ...

    def start(self, config: AttentionConfig, draw: Draw) -> dict[str, mx.array]:
        """The starting weights of those parts that are linear maps, by name."""
        ...

    def key_shape(self, config: AttentionConfig) -> tuple[int, int]:
        """How many key heads there are, and how wide each is."""
        ...

    def __call__(self, layers: Any, x: Float[mx.array, "B T C"]) -> tuple[Queries, Keys]:
        """Queries and keys of x."""
        ...


class Separate:
    """q_h = x W_query_h, k_h = x W_key_h: the book's form, S_h of rank at most head_dim."""

    def layers(self, config: AttentionConfig) -> dict[str, Any]:
        return {"W_query": _query_layer(config), "W_key": _key_layer(config)}

    def start(self, config: AttentionConfig, draw: Draw) -> dict[str, mx.array]:
        C, D = config.d_in, config.head_dim
        return {"W_query": draw(config.n_heads * D, C), "W_key": draw(config.n_kv_heads * D, C)}

    def key_shape(self, config: AttentionConfig) -> tuple[int, int]:
        return config.n_kv_heads, config.head_dim

    def __call__(self, layers: Any, x: Float[mx.array, "B T C"]) -> tuple[Queries, Keys]:
        config = layers.config
        q = split_heads(layers.W_query(x), config.n_heads)
        return q, split_heads(layers.W_key(x), config.n_kv_heads)


class NoQuery(Separate):
    """q_h = x[slice h], k_h = x W_key_h: S_h = I_h W_key_h^T (Karbevski, arXiv:2510.23912)."""

    def layers(self, config: AttentionConfig) -> dict[str, Any]:
        return {"W_key": _key_layer(config)}

    def start(self, config: AttentionConfig, draw: Draw) -> dict[str, mx.array]:
        return {"W_key": draw(config.n_kv_heads * config.head_dim, config.d_in)}

    def __call__(self, layers: Any, x: Float[mx.array, "B T C"]) -> tuple[Queries, Keys]:
        config = layers.config
        return split_heads(x, config.n_heads), split_heads(layers.W_key(x), config.n_kv_heads)


class NoKey(Separate):
    """q_h = x W_query_h, k_h = x[slice h]: the mirror image of `NoQuery`."""

    def layers(self, config: AttentionConfig) -> dict[str, Any]:
        return {"W_query": _query_layer(config)}

    def start(self, config: AttentionConfig, draw: Draw) -> dict[str, mx.array]:
        return {"W_query": draw(config.n_heads * config.head_dim, config.d_in)}

    def __call__(self, layers: Any, x: Float[mx.array, "B T C"]) -> tuple[Queries, Keys]:
        config = layers.config
        return split_heads(layers.W_query(x), config.n_heads), split_heads(x, config.n_kv_heads)


class Shared(NoKey):
    """q_h = k_h = x W_query_h: S_h is symmetric, positive semidefinite (arXiv:2001.04451)."""

    def __call__(self, layers: Any, x: Float[mx.array, "B T C"]) -> tuple[Queries, Keys]:
        q = split_heads(layers.W_query(x), layers.config.n_heads)
        return q, q


class Collaborative(Separate):
    """S_h = W_query diag(m_h) W_key^T: shared maps, mixed per head (arXiv:2006.16362).

    The key is one, n_heads * head_dim wide, and serves all heads.
    """

    def layers(self, config: AttentionConfig) -> dict[str, Any]:
        C, width = config.d_in, config.n_heads * config.head_dim
        return {
            "W_query": nn.Linear(C, width, bias=config.qkv_bias),
            "W_key": nn.Linear(C, width, bias=config.qkv_bias),
            "mixing": head_blocks(config.n_heads, config.head_dim),
        }

    def start(self, config: AttentionConfig, draw: Draw) -> dict[str, mx.array]:
        C, width = config.d_in, config.n_heads * config.head_dim
        return {"W_query": draw(width, C), "W_key": draw(width, C)}

    def key_shape(self, config: AttentionConfig) -> tuple[int, int]:
        return 1, config.n_heads * config.head_dim

    def __call__(self, layers: Any, x: Float[mx.array, "B T C"]) -> tuple[Queries, Keys]:
        q = layers.W_query(x)[:, None] * layers.mixing[:, None]
        return q, layers.W_key(x)[:, None]


class ShrunkKey(Separate):
    """k_h = x[kept_h] + x[rest_h] R_h: W_key less what W_query can do as well."""

    def layers(self, config: AttentionConfig) -> dict[str, Any]:
        bias = config.qkv_bias
        W_key = ShrunkLinear(config.d_in, config.n_kv_heads, config.head_dim, bias)
        return {"W_query": _query_layer(config), "W_key": W_key}

    def start(self, config: AttentionConfig, draw: Draw) -> dict[str, mx.array]:
        C, D = config.d_in, config.head_dim
        return {
            "W_query": draw(config.n_heads * D, C),
            "W_key": draw(config.n_kv_heads * D, C - D),
        }


class Merged:
    """q_h = x S_h, k = x: W_query_h W_key_h^T trained as one matrix of full rank.

    With biases, the key's bias cancels in the softmax and the query's becomes one key-side vector
    per head, which is the bias of S: score_h(i, j) = scale * (x_i S_h + u_h) . x_j.
    """

    def layers(self, config: AttentionConfig) -> dict[str, Any]:
        return {"S": nn.Linear(config.d_in, config.n_heads * config.d_in, bias=config.qkv_bias)}

    def start(self, config: AttentionConfig, draw: Draw) -> dict[str, mx.array]:
        C, D = config.d_in, config.head_dim
        query, key = draw(config.n_heads * D, C), draw(config.n_kv_heads * D, C)
        product = merge_query_key(query, key, config.n_heads)
        return {"S": start_merged(config.merged_start, product, factor_spread(query, key, D))}

    def key_shape(self, config: AttentionConfig) -> tuple[int, int]:
        return 1, config.d_in

    def __call__(self, layers: Any, x: Float[mx.array, "B T C"]) -> tuple[Queries, Keys]:
        return split_heads(layers.S(x), layers.config.n_heads), x[:, None]


SCORES: dict[str, Score] = {
    "separate": Separate(),
    "merged": Merged(),
    "no_query": NoQuery(),
    "no_key": NoKey(),
    "shared": Shared(),
    "collaborative": Collaborative(),
    "shrunk": ShrunkKey(),
}


def head_blocks(n_heads: int, head_dim: int) -> Float[mx.array, "H width"]:
    """Mixing vectors that give each head its own block: collaborative starts as separate."""
    return mx.repeat(mx.eye(n_heads), head_dim, axis=1)


def _query_layer(config: AttentionConfig) -> nn.Linear:
    return nn.Linear(config.d_in, config.n_heads * config.head_dim, bias=config.qkv_bias)


def _key_layer(config: AttentionConfig) -> nn.Linear:
    return nn.Linear(config.d_in, config.n_kv_heads * config.head_dim, bias=config.qkv_bias)
