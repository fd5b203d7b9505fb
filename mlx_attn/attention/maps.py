"""Every choice of the maps of attention: its formula, its weights, its start, its computation.

    score_h(i, j) = scale * x_i S_h x_j^T      score:  x -> queries and keys
    head_h        = softmax(score_h) x V_h     value:  x -> values
    y             = sum_h head_h O_h           output: heads -> y

A choice is registered at its definition and listed nowhere else. Its weights are attributes of the
layer `a`, under the book's names, so that a checkpoint reads like the book.
"""

from typing import Any, TypeVar

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from jaxtyping import Float

from mlx_attn.attention.config import AttentionConfig
from mlx_attn.attention.layer import (
    OUT_PROJ,
    W_KEY,
    W_QUERY,
    W_VALUE,
    Heads,
    Initializer,
    Inputs,
    Keys,
    MapWeights,
    Outputs,
    Queries,
    Values,
    choice,
    merge_heads,
    out_width,
    split_heads,
)
from mlx_attn.machine.exponentials import gelu

Array = TypeVar("Array", mx.array, np.ndarray)

# The products of two maps; for MLX's arrays and NumPy's alike.


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


def merge_value_output(
    W_value: Float[Array, "kv_width d_in"], out_proj: Float[Array, "d_out width"], n_heads: int
) -> Float[Array, "d_out merged"]:
    """Return VO_h = W_value_h O_h of every query head, as the weight of `VO`: [d_out, H C].

    sum_h (softmax_h x) W_value_h O_h = sum_h (softmax_h x) VO_h, where O_h are the rows of out_proj
    that read head h. Columns h C..(h+1) C hold head h, so that `concat_h(softmax_h x) @ VO.T` is
    the layer's output.
    """
    d_out, head_dim = out_proj.shape[0], out_proj.shape[1] // n_heads
    # [kv_heads, 1, D, d_in]
    value = W_value.reshape(-1, 1, head_dim, W_value.shape[1])
    # [d_out, H D] -> [kv_heads, H / kv_heads, d_out, D]
    output = out_proj.reshape(d_out, value.shape[0], -1, head_dim).transpose(1, 2, 0, 3)
    # [kv_heads, group, d_out, d_in] -> [H, d_out, d_in] -> [d_out, H d_in]
    return (output @ value).reshape(n_heads, d_out, -1).swapaxes(0, 1).reshape(d_out, -1)


# Score maps.


def _needs_slices(word: str, heads: int, width: int, c: AttentionConfig) -> str:
    if heads * width == c.d_in:
        return ""
    return (
        f"{word} gives each head a slice of x, so {heads} heads of {width} must "
        f"make up emb_dim={c.d_in}: change n_heads, n_kv_heads or head_dim"
    )


@choice(
    "score",
    "separate",
    "q_h = x W_query_h, k_h = x W_key_h",
    input_weights=("W_query", "W_key"),
    source="the book, section 3.6",
    weights=W_QUERY | W_KEY,
)
def separate(a: MapWeights, x: Inputs) -> tuple[Queries, Keys]:
    """Compute the book's form: S_h = W_query_h W_key_h^T has rank at most head_dim."""
    q = split_heads(a.W_query(x), a.config.n_heads)
    return q, split_heads(a.W_key(x), a.config.n_kv_heads)


def _merged_score_init(c: AttentionConfig, draw: Initializer) -> dict[str, mx.array]:
    # The factors that separate maps with this seed would start with.
    query = draw("W_query", c.n_heads * c.head_dim, c.d_in)
    key = draw("W_key", c.n_kv_heads * c.head_dim, c.d_in)
    return {"S": merge_query_key(query, key, c.n_heads)}


@choice(
    "score",
    "merged",
    "q_h = x S_h, k = x",
    input_weights=("S",),
    source="algebra: S_h = W_query_h W_key_h^T",
    weights={"S": lambda c: nn.Linear(c.d_in, c.n_heads * c.d_in, bias=c.qkv_bias)},
    init=_merged_score_init,
    shape=lambda c: (1, c.d_in),
    cache="x",
)
def merged(a: MapWeights, x: Inputs) -> tuple[Queries, Keys]:
    """Multiply by S_h, which is W_query_h W_key_h^T trained as one matrix of full rank.

    With biases, the key's bias cancels in the softmax and the query's becomes one key-side vector
    per head, which is the bias of S: score_h(i, j) = scale * (x_i S_h + u_h) . x_j.
    """
    # [B, T, H C] -> [B, H, T, C]; the key is x itself, [B, 1, T, C], which all heads share.
    return split_heads(a.S(x), a.config.n_heads), x[:, None]


@choice(
    "score",
    "no_query",
    "q_h = x[slice h], k_h = x W_key_h",
    source="Karbevski, arXiv:2510.23912",
    weights=W_KEY,
    refuses=lambda c: _needs_slices("score=no_query", c.n_heads, c.head_dim, c),
)
def no_query(a: MapWeights, x: Inputs) -> tuple[Queries, Keys]:
    """Take the head's own slice of x as its query: S_h = I_h W_key_h^T."""
    # [B, T, C] -> [B, H, T, C / H], without a product.
    return split_heads(x, a.config.n_heads), split_heads(a.W_key(x), a.config.n_kv_heads)


@choice(
    "score",
    "nonlinear_query",
    "q_h = (x + norm(gelu(norm(x) W_down) W_up))[slice h] / 2, k_h = x W_key_h",
    source="Karbevski, arXiv:2603.13381",
    weights={
        "W_down": lambda c: nn.Linear(c.d_in, c.d_in // 2, bias=c.qkv_bias),
        "W_up": lambda c: nn.Linear(c.d_in // 2, c.d_in, bias=c.qkv_bias),
        **W_KEY,
        "norm_in": lambda c: nn.RMSNorm(c.d_in),
        "norm_out": lambda c: nn.LayerNorm(c.d_in, bias=c.qkv_bias),
    },
    affine=False,
    refuses=lambda c: _needs_slices("score=nonlinear_query", c.n_heads, c.head_dim, c),
)
def nonlinear_query(a: MapWeights, x: Inputs) -> tuple[Queries, Keys]:
    """Return the mean of x and a narrow network of x, with the parameter count of W_query."""
    # [B, T, C] -> [B, T, C / 2] -> [B, T, C]
    residual = a["norm_out"](a["W_up"](gelu(a["W_down"](a["norm_in"](x)))))
    q = split_heads((x + residual) / 2, a.config.n_heads)
    return q, split_heads(a.W_key(x), a.config.n_kv_heads)


@choice(
    "score",
    "no_key",
    "q_h = x W_query_h, k_h = x[slice h]",
    source="the mirror image of score=no_query",
    weights=W_QUERY,
    refuses=lambda c: _needs_slices("score=no_key", c.n_kv_heads, c.head_dim, c),
)
def no_key(a: MapWeights, x: Inputs) -> tuple[Queries, Keys]:
    """Take the head's own slice of x as its key, the mirror image of `no_query`."""
    # [B, T, C] -> [B, kv_heads, T, C / kv_heads]
    return split_heads(a.W_query(x), a.config.n_heads), split_heads(x, a.config.n_kv_heads)


@choice(
    "score",
    "shared",
    "q_h = k_h = x W_query_h",
    input_weights=("W_query",),
    source="Reformer, arXiv:2001.04451",
    weights=W_QUERY,
    refuses=lambda c: (
        ""
        if c.n_kv_heads == c.n_heads
        else f"score=shared uses the queries as keys, so n_kv_heads={c.n_kv_heads} must be "
        f"n_heads={c.n_heads}"
    ),
)
def shared(a: MapWeights, x: Inputs) -> tuple[Queries, Keys]:
    """Use one matrix for query and key: S_h is symmetric and positive semidefinite."""
    q = split_heads(a.W_query(x), a.config.n_heads)
    return q, q


@choice(
    "score",
    "collaborative",
    "q_h = (x W_query) * m_h, k = x W_key",
    input_weights=("W_query", "W_key"),
    source="Cordonnier et al., arXiv:2006.16362",
    weights={
        **W_QUERY,
        "W_key": W_QUERY["W_query"],  # as wide: n_kv_heads does not count
        # Each head its own block of the mixing vector: the start is the separate form.
        "mixing": lambda c: mx.repeat(mx.eye(c.n_heads), c.head_dim, axis=1),
    },
    shape=lambda c: (1, c.n_heads * c.head_dim),
)
def collaborative(a: MapWeights, x: Inputs) -> tuple[Queries, Keys]:
    """Share both maps among all heads, S_h = W_query diag(m_h) W_key^T, with one wide key."""
    q = a.W_query(x)[:, None] * a.mixing[:, None]  # [B, 1, T, H D] * [H, 1, H D]
    # [B, 1, T, H D]: m_h chooses how much each of the H D coordinates counts for head h.
    return q, a.W_key(x)[:, None]


# Value maps. A map can be applied to x before the weighted sum or to softmax_h x after it: the sum
# is linear and its weights add up to 1, so biases too come out the same.


def linear_after(a: MapWeights, y: Float[mx.array, "B H T C"]) -> Heads:
    """Apply W_value to the weighted sums of x, head by head."""
    # y = softmax_h x: the map comes after the weighted sum, for each head by itself.
    W_value: Any = a.W_value
    group = y.shape[1] // a.config.n_kv_heads
    dense = W_value.dense_weight() if hasattr(W_value, "dense_weight") else W_value.weight
    weight = dense.reshape(a.config.n_kv_heads, a.config.value_dim, -1)
    # [B, H, T, C] x [H, C, D] -> [B, H, T, D]
    heads = y @ mx.repeat(weight, group, axis=0).swapaxes(1, 2)
    if "bias" not in W_value:
        return heads
    return heads + mx.repeat(W_value.bias.reshape(a.config.n_kv_heads, 1, -1), group, axis=0)


def linear_value(a: MapWeights, x: Inputs, k: Keys) -> Values:
    """Apply W_value to x and cut the result into heads."""
    return split_heads(a.W_value(x), a.config.n_kv_heads)


choice(
    "value",
    "linear",
    "v_h = x W_value_h",
    input_weights=("W_value",),
    source="the book, section 3.6",
    weights=W_VALUE,
    after=linear_after,
)(linear_value)


def _needs_a_key_per_head(c: AttentionConfig) -> str:
    if c.score in ("merged", "collaborative", "off"):
        has = "none" if c.score == "off" else "one for all"
        return (
            f"value={c.value} needs a key per head, and score={c.score} has {has}: "
            "use score=separate, or output=merged for values of full width"
        )
    if c.value == "key" and c.value_dim != c.head_dim:
        return (
            f"value=key makes values as wide as keys, so value_dim={c.value_dim} must be "
            f"head_dim={c.head_dim}"
        )
    return ""


def _slice_after(a: MapWeights, y: Float[mx.array, "B H T C"]) -> Heads:
    D, group = a.config.value_dim, a.config.n_heads // a.config.n_kv_heads
    # Head h needs only the columns of its value head's slice.
    slices = [y[:, h, :, h // group * D : (h // group + 1) * D] for h in range(y.shape[1])]
    return mx.stack(slices, axis=1)


@choice(
    "value",
    "identity",
    "v_h = x[slice h]",
    source="He and Hofmann, arXiv:2311.01906",
    after=_slice_after,
    refuses=lambda c: _needs_slices("value=identity", c.n_kv_heads, c.value_dim, c),
)
def identity_value(a: MapWeights, x: Inputs, k: Keys) -> Values:
    """Take the head's own slice of x as its value."""
    return split_heads(x, a.config.n_kv_heads)


@choice(
    "value",
    "key",
    "v_h = k_h",
    reads_keys=True,
    input_weights=(),
    source="Kayyam et al., arXiv:2606.04032; keyless attention, arXiv:2606.21848",
    refuses=_needs_a_key_per_head,
)
def key_as_value(a: MapWeights, x: Inputs, k: Keys) -> Values:
    """Use the key as the value."""
    return k


# Output maps.


@choice(
    "output",
    "linear",
    "y = concat(heads) out_proj",
    input_weights=(),
    source="the book, section 3.6",
    weights=OUT_PROJ,
)
def linear_output(a: MapWeights, heads: Heads, x: Any) -> Outputs:
    """Apply out_proj to the concatenated heads; O_h are its rows that read head h."""
    return a.out_proj(merge_heads(heads))


def _gain_init(c: AttentionConfig, draw: Initializer) -> dict[str, mx.array]:
    """Start the gain at the scale of out_proj: spread s turns heads of spread 1 into s sqrt(H D).

    Without it the branch would start that much louder, so the gain starts there.
    """
    # Only in a GPT does the scale of a branch matter.
    if not c.residual_gain:
        return {}
    # Drawn and thrown away: only its spread matters.
    replaced = draw("out_proj", c.d_out, out_width(c), residual=True)
    return {"residual_gain": (mx.std(replaced) * out_width(c) ** 0.5).reshape(1)}


@choice(
    "output",
    "none",
    "y = g concat(heads)",
    input_weights=(),
    source="the book, section 3.5",
    weights={"residual_gain": lambda c: mx.ones((1,)) if c.residual_gain else None},
    init=_gain_init,
    refuses=lambda c: (
        ""
        if out_width(c) == c.d_out
        else f"output=none concatenates {c.n_heads} heads of {c.value_dim} to {out_width(c)}, "
        f"which must be {c.d_out}: keep out_proj or change head_dim"
    ),
)
def no_output(a: MapWeights, heads: Heads, x: Any) -> Outputs:
    """Concatenate the heads; g is 1 unless the configuration asks for a trained gain."""
    y = merge_heads(heads)
    return a.residual_gain * y if "residual_gain" in a else y


def _merged_output_init(c: AttentionConfig, draw: Initializer) -> dict[str, mx.array]:
    # As for S: the factors that separate maps would start with.
    value = draw("W_value", out_width(c), c.d_in)
    output = draw("out_proj", c.d_out, out_width(c), residual=True)
    return {"VO": merge_value_output(value, output, c.n_heads)}  # [d_out, H C], as VO is stored


@choice(
    "output",
    "merged",
    "y = sum_h (softmax_h x) VO_h",
    input_weights=("VO",),
    source="algebra: VO_h = W_value_h out_proj_h",
    weights={"VO": lambda c: nn.Linear(c.n_heads * c.d_in, c.d_out, bias=c.out_bias)},
    init=_merged_output_init,
    refuses=lambda c: (
        ""
        if (c.value, c.n_kv_heads) == ("linear", c.n_heads)
        else "output=merged trains W_value and out_proj as one matrix per head: it needs "
        f"value=linear (it is '{c.value}') and as many value heads as heads "
        f"({c.n_kv_heads} of {c.n_heads})"
    ),
)
def merged_output(a: MapWeights, heads: Heads, x: Any) -> Outputs:
    """Multiply each head's sum of x by one C x d_out matrix, for W_value and out_proj."""
    # [B, H, T, C] -> [B, T, H C] -> [B, T, d_out]: the product also sums over heads.
    return a.VO(merge_heads(heads))
