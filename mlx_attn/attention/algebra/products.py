"""The two products that attention is made of: query with key, and value with output."""

from typing import TypeVar

import mlx.core as mx
import numpy as np
from jaxtyping import Float

Array = TypeVar("Array", mx.array, np.ndarray)


def merge_query_key(
    W_query: Float[Array, "width C"], W_key: Float[Array, "kv_width C"], n_heads: int
) -> Float[Array, "merged C"]:
    """The merged score matrix S_h = W_query_h W_key_h^T of every head, as the weight of `S`.

    (x_i W_query_h) . (x_j W_key_h) = (x_i S_h) . x_j. Rows h C..(h+1) C hold head h. A key head
    that serves several query heads is used for each of them.

    Args:
        W_query: Stored weight of the query map, n_heads * head_dim rows.
        W_key: Stored weight of the key map, n_kv_heads * head_dim rows.
        n_heads: Number of query heads H.

    Returns:
        [H C, C], so that `x @ S.T` holds q_h in columns h C..(h+1) C.
    """
    C, head_dim = W_query.shape[1], W_query.shape[0] // n_heads
    key = W_key.reshape(-1, 1, head_dim, C)
    query = W_query.reshape(key.shape[0], -1, head_dim, C)
    return (key.swapaxes(2, 3) @ query).reshape(n_heads * C, C)


def merge_value_output(
    W_value: Float[Array, "kv_width d_in"],
    out_proj: Float[Array, "d_out width"],
    n_heads: int,
) -> Float[Array, "d_out merged"]:
    """The merged output matrix V_h O_h of every head, as the weight of `VO`.

    sum_h (softmax_h x) W_value_h O_h = sum_h (softmax_h x) VO_h, where O_h are the rows of
    out_proj that read head h. Columns h C..(h+1) C hold head h. A value head that serves several
    query heads is used for each of them.

    Returns:
        [d_out, H C], so that `concat_h(softmax_h x) @ VO.T` is the layer's output.
    """
    d_out, head_dim = out_proj.shape[0], out_proj.shape[1] // n_heads
    value = W_value.reshape(-1, 1, head_dim, W_value.shape[1])
    output = out_proj.reshape(d_out, value.shape[0], -1, head_dim).transpose(1, 2, 0, 3)
    return (output @ value).reshape(n_heads, d_out, -1).swapaxes(0, 1).reshape(d_out, -1)
