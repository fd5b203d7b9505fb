"""Exact identities between the forms of attention.

Linear weights are stored (out, in), so a row vector x is mapped to x W^T; the letters below are the
matrices that act on x from the right, as in `q = x W_query`.
"""

import mlx.core as mx
from jaxtyping import Float


def merge_query_key(
    W_query: Float[mx.array, "width C"], W_key: Float[mx.array, "kv_width C"], n_heads: int
) -> Float[mx.array, "merged C"]:
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
    C = W_query.shape[1]
    query = W_query.reshape(n_heads, -1, C)
    key = W_key.reshape(-1, query.shape[1], C)
    key = mx.repeat(key, n_heads // key.shape[0], axis=0)
    return (key.swapaxes(1, 2) @ query).reshape(n_heads * C, C)


def merge_value_output(
    W_value: Float[mx.array, "width d_in"],
    out_proj: Float[mx.array, "d_out width"],
    n_heads: int,
) -> Float[mx.array, "d_out merged"]:
    """The merged output matrix V_h O_h of every head, as the weight of `VO`.

    sum_h (softmax_h x) W_value_h O_h = sum_h (softmax_h x) VO_h, where O_h are the rows of
    out_proj that read head h. Columns h C..(h+1) C hold head h.

    Returns:
        [d_out, H C], so that `concat_h(softmax_h x) @ VO.T` is the layer's output.
    """
    value = W_value.reshape(n_heads, -1, W_value.shape[1])
    output = out_proj.reshape(out_proj.shape[0], n_heads, -1).transpose(1, 0, 2)
    merged = output @ value
    return merged.transpose(1, 0, 2).flatten(1)
