"""The book's choices of the maps: their formulas, their weights, their start, their computation.

    score_h(i, j) = scale * x_i S_h x_j^T      score:  x -> queries and keys
    head_h        = softmax(score_h) x V_h     value:  x -> values
    y             = sum_h head_h O_h           output: heads -> y

Between score and value are two hooks, w_h = mixing(logits(score_h) + mask). A choice is registered
at its definition and listed nowhere else. Its weights are attributes of the layer, under the book's
names, so that a checkpoint reads like the book. The field's choices are in `forms`.
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
    Scores,
    Values,
    choice,
    matrix_of,
    merge_heads,
    out_width,
    split_heads,
)
from mlx_attn.machine.exponentials import softmax

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


def needs_slices(word: str, heads: int, width: int, config: AttentionConfig) -> str:
    """Refuse heads that are slices of x unless they make up all of it."""
    if heads * width == config.d_in:
        return ""
    return (
        f"{word} gives each head a slice of x, so {heads} heads of {width} must "
        f"make up emb_dim={config.d_in}: change n_heads, n_kv_heads or head_dim"
    )


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
    q = split_heads(layer.W_query(x), layer.config.n_heads)
    return q, split_heads(layer.W_key(x), layer.config.n_kv_heads)


def _merged_score_init(config: AttentionConfig, draw: Initializer) -> dict[str, mx.array]:
    # The factors that separate maps with this seed would start with.
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
    return split_heads(layer.S(x), layer.config.n_heads), x[:, None]


@choice(
    "score",
    "no_query",
    "q_h = x[slice h], k_h = x W_key_h",
    source="Karbevski, arXiv:2510.23912",
    weights=W_KEY,
    refuses=lambda config: needs_slices("score=no_query", config.n_heads, config.head_dim, config),
)
def no_query(layer: MapWeights, x: Inputs) -> tuple[Queries, Keys]:
    """Take the head's own slice of x as its query: S_h = I_h W_key_h^T."""
    # [B, T, C] -> [B, H, T, C / H], without a product.
    return split_heads(x, layer.config.n_heads), split_heads(
        layer.W_key(x), layer.config.n_kv_heads
    )


@choice(
    "score",
    "no_key",
    "q_h = x W_query_h, k_h = x[slice h]",
    source="the mirror image of score=no_query",
    weights=W_QUERY,
    refuses=lambda config: needs_slices("score=no_key", config.n_kv_heads, config.head_dim, config),
)
def no_key(layer: MapWeights, x: Inputs) -> tuple[Queries, Keys]:
    """Take the head's own slice of x as its key, the mirror image of `no_query`."""
    # [B, T, C] -> [B, kv_heads, T, C / kv_heads]
    return split_heads(layer.W_query(x), layer.config.n_heads), split_heads(
        x, layer.config.n_kv_heads
    )


@choice(
    "score",
    "shared",
    "q_h = k_h = x W_query_h",
    input_weights=("W_query",),
    source="Reformer, arXiv:2001.04451",
    weights=W_QUERY,
    refuses=lambda config: (
        ""
        if config.n_kv_heads == config.n_heads
        else f"score=shared uses the queries as keys, so n_kv_heads={config.n_kv_heads} must be "
        f"n_heads={config.n_heads}"
    ),
)
def shared(layer: MapWeights, x: Inputs) -> tuple[Queries, Keys]:
    """Use one matrix for query and key: S_h is symmetric and positive semidefinite."""
    q = split_heads(layer.W_query(x), layer.config.n_heads)
    return q, q


# Value maps. A map can be applied to x before the weighted sum or to softmax_h x after it: the sum
# is linear and its weights add up to 1, so biases too come out the same.


def linear_after(layer: MapWeights, y: Float[mx.array, "B H T C"]) -> Heads:
    """Apply W_value to the weighted sums of x, head by head."""
    # y = softmax_h x: the map comes after the weighted sum, for each head by itself.
    H_kv, group = layer.config.n_kv_heads, y.shape[1] // layer.config.n_kv_heads
    weight, bias = matrix_of(layer.W_value, y.shape[-1])
    weight = weight.reshape(H_kv, layer.config.value_dim, -1)
    # [B, H, T, C] x [H, C, D] -> [B, H, T, D]
    heads = y @ mx.repeat(weight, group, axis=0).swapaxes(1, 2)
    return heads if bias is None else heads + mx.repeat(bias.reshape(H_kv, 1, -1), group, axis=0)


def linear_value(layer: MapWeights, x: Inputs, k: Keys) -> Values:
    """Apply W_value to x and cut the result into heads."""
    return split_heads(layer.W_value(x), layer.config.n_kv_heads)


choice(
    "value",
    "linear",
    "v_h = x W_value_h",
    input_weights=("W_value",),
    source="the book, section 3.6",
    weights=W_VALUE,
    after=linear_after,
)(linear_value)


def _needs_a_key_per_head(config: AttentionConfig) -> str:
    if config.score in ("merged", "collaborative", "off"):
        has = "none" if config.score == "off" else "one for all"
        return (
            f"value={config.value} needs a key per head, and score={config.score} has {has}: "
            "use score=separate, or output=merged for values of full width"
        )
    if config.value == "key" and config.value_dim != config.head_dim:
        return (
            f"value=key makes values as wide as keys, so value_dim={config.value_dim} must be "
            f"head_dim={config.head_dim}"
        )
    return ""


def _slice_after(layer: MapWeights, y: Float[mx.array, "B H T C"]) -> Heads:
    D, group = layer.config.value_dim, layer.config.n_heads // layer.config.n_kv_heads
    # Head h needs only the columns of its value head's slice.
    slices = [y[:, h, :, h // group * D : (h // group + 1) * D] for h in range(y.shape[1])]
    return mx.stack(slices, axis=1)


@choice(
    "value",
    "identity",
    "v_h = x[slice h]",
    source="He and Hofmann, arXiv:2311.01906",
    after=_slice_after,
    refuses=lambda config: needs_slices(
        "value=identity", config.n_kv_heads, config.value_dim, config
    ),
)
def identity_value(layer: MapWeights, x: Inputs, k: Keys) -> Values:
    """Take the head's own slice of x as its value."""
    return split_heads(x, layer.config.n_kv_heads)


@choice(
    "value",
    "key",
    "v_h = k_h",
    reads_keys=True,
    input_weights=(),
    source="Kayyam et al., arXiv:2606.04032; keyless attention, arXiv:2606.21848",
    refuses=_needs_a_key_per_head,
)
def key_as_value(layer: MapWeights, x: Inputs, k: Keys) -> Values:
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
def linear_output(layer: MapWeights, heads: Heads, x: Any) -> Outputs:
    """Apply out_proj to the concatenated heads; O_h are its rows that read head h."""
    return layer.out_proj(merge_heads(heads))


def _gain_init(config: AttentionConfig, draw: Initializer) -> dict[str, mx.array]:
    """Start the gain at the scale of out_proj: spread s turns heads of spread 1 into s sqrt(H D).

    Without it the branch would start that much louder, so the gain starts there.
    """
    # Only in a GPT does the scale of a branch matter.
    if not config.residual_gain:
        return {}
    # Drawn and thrown away: only its spread matters.
    replaced = draw("out_proj", config.d_out, out_width(config), residual=True)
    return {"residual_gain": (mx.std(replaced) * out_width(config) ** 0.5).reshape(1)}


@choice(
    "output",
    "none",
    "y = g concat(heads)",
    input_weights=(),
    source="the book, section 3.5",
    weights={"residual_gain": lambda config: mx.ones((1,)) if config.residual_gain else None},
    init=_gain_init,
    refuses=lambda config: (
        ""
        if out_width(config) == config.d_out
        else f"output=none concatenates {config.n_heads} heads of {config.value_dim} to "
        f"{out_width(config)}, which must be {config.d_out}: keep out_proj or change head_dim"
    ),
)
def no_output(layer: MapWeights, heads: Heads, x: Any) -> Outputs:
    """Concatenate the heads; g is 1 unless the configuration asks for a trained gain."""
    y = merge_heads(heads)
    return layer.residual_gain * y if "residual_gain" in layer else y


def _merged_output_init(config: AttentionConfig, draw: Initializer) -> dict[str, mx.array]:
    # As for S: the factors that separate maps would start with.
    value = draw("W_value", out_width(config), config.d_in)
    output = draw("out_proj", config.d_out, out_width(config), residual=True)
    return {
        "VO": merge_value_output(value, output, config.n_heads)
    }  # [d_out, H C], as VO is stored


@choice(
    "output",
    "merged",
    "y = sum_h (softmax_h x) VO_h",
    input_weights=("VO",),
    source="algebra: VO_h = W_value_h out_proj_h",
    weights={
        "VO": lambda config: nn.Linear(
            config.n_heads * config.d_in, config.d_out, bias=config.out_bias
        )
    },
    init=_merged_output_init,
    refuses=lambda config: (
        ""
        if (config.value, config.n_kv_heads) == ("linear", config.n_heads)
        else "output=merged trains W_value and out_proj as one matrix per head: it needs "
        f"value=linear (it is '{config.value}') and as many value heads as heads "
        f"({config.n_kv_heads} of {config.n_heads})"
    ),
)
def merged_output(layer: MapWeights, heads: Heads, x: Any) -> Outputs:
    """Multiply each head's sum of x by one C x d_out matrix, for W_value and out_proj."""
    # [B, H, T, C] -> [B, T, H C] -> [B, T, d_out]: the product also sums over heads.
    return layer.VO(merge_heads(heads))


# The two hooks between score and value, of which most layers have neither and pay nothing.

choice("logits", "none", "s_h = score_h")(lambda layer, s: s)


@choice("mixing", "softmax", "w_h = softmax(s_h)", sums_to_one=True, shift_invariant=True)
def softmax_weights(layer: MapWeights, s: Scores) -> Scores:
    """Compute the standard weights: positive, with sum 1."""
    return softmax(s)
