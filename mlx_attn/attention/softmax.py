"""The core: a weighted sum of values, with weights softmax(scale q k^T + mask).

Three paths give the same numbers. `mx.fast.scaled_dot_product_attention` is fused on Metal where
`mlx_attn.attention.metal` says so. The explicit path is needed for dropout of the weights, for the
weights themselves, and where keys and values have different numbers of heads. On a Linux processor
`mlx_attn.attention.weighing` is faster than both.
"""

from collections.abc import Callable

import mlx.core as mx
from jaxtyping import Float

from mlx_attn.exponentials import softmax

Queries = Float[mx.array, "B H T_q K"]
Keys = Float[mx.array, "B key_heads T_k K"]
Values = Float[mx.array, "B value_heads T_k D"]
Bias = Float[mx.array, "H T_q T_k"] | None


def fused_attention(
    q: Queries, k: Keys, v: Values, scale: float, bias: Bias = None
) -> Float[mx.array, "B H T_q D"]:
    """softmax(scale q k^T + causal mask + bias) v by MLX's own operation.

    Args:
        q: Queries.
        k: Keys; each head serves H / key_heads query heads.
        v: Values, with as many heads as the keys.
        scale: Factor of the scores.
        bias: Added to the scores, the causal mask already in it; None is the causal mask alone.
    """
    causal = "causal" if q.shape[2] > 1 else None
    mask = causal if bias is None else bias.astype(q.dtype)
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)


def explicit_attention(
    q: Queries,
    k: Keys,
    v: Values,
    mask: mx.array,
    scale: float,
    dropout: Callable[[mx.array], mx.array],
) -> Float[mx.array, "B H T_q D"]:
    """dropout(softmax(scale q k^T + mask)) v, written out.

    `mask` is added to the scores and broadcast over the batch (and heads).
    """
    return weighted_sum(dropout(attention_weights(q, k, mask, scale)), v)


def attention_weights(
    q: Queries, k: Keys, mask: mx.array, scale: float
) -> Float[mx.array, "B H T_q T_k"]:
    """softmax(scale q k^T + mask), in the mask's float32, or in float64 where the inputs are.

    Query heads that share a key head are folded into the rows of one matrix product, so a key is
    never repeated: this is also the row-folded form of merged attention, where x is the only key.
    """
    B, H, T_q, _ = q.shape
    rows = (q * scale).reshape(B, k.shape[1], -1, q.shape[-1])
    scores = (rows @ k.swapaxes(2, 3)).reshape(B, H, T_q, -1)
    return softmax(scores + mask).astype(q.dtype)


def weighted_sum(
    weights: Float[mx.array, "B H T_q T_k"], v: Values
) -> Float[mx.array, "B H T_q D"]:
    """Weights v, with query heads that share a value head folded into rows."""
    B, H, T_q, T_k = weights.shape
    rows = weights.reshape(B, v.shape[1], -1, T_k)
    return (rows @ v).reshape(B, H, T_q, -1)
