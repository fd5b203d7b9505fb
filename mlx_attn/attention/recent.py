"""Score, value and output maps from the field's papers, and scores switched off as a reference.

Each is one function with its formula and source, registered as the book's forms are in
`mlx_attn.attention.maps`.
"""

import mlx.core as mx
import mlx.nn as nn
from jaxtyping import Float

from mlx_attn.attention.config import AttentionConfig
from mlx_attn.attention.layer import (
    OUT_PROJ,
    W_KEY,
    W_QUERY,
    W_VALUE,
    Carry,
    Heads,
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

# Score maps.


@choice(
    "score",
    "off",
    "score_h = 0",
    input_weights=(),
    source="a reference arm",
    shape=lambda c: (1, 2),
)
def scores_off(a: MapWeights, x: Inputs) -> tuple[Queries, Keys]:
    """Score all keys 0: only positions decide which tokens get attention."""
    B, T, _ = x.shape
    # Width 2, the least that rotary positions allow.
    return mx.zeros((B, a.config.n_heads, T, 2), x.dtype), mx.zeros((B, 1, T, 2), x.dtype)


def _latent_refuses(c: AttentionConfig) -> str:
    if c.rotates or c.qk_norm:
        return (
            "the latent of score=latent is not a key of its own: it cannot be rotated or "
            "normalized, use learned or alibi positions without qk_norm"
        )
    if (c.score == "latent") != (c.value == "latent"):
        return "score=latent and value=latent share one latent: use --variant mla, or neither"
    if c.n_kv_heads != c.n_heads:
        return f"score=latent has a key per head, so n_kv_heads={c.n_kv_heads} must be {c.n_heads}"
    return ""


@choice(
    "score",
    "latent",
    "c = x W_latent, q_h = x W_query_h W_up_key_h^T, k = c",
    source="multi-head latent attention, DeepSeek-V2, arXiv:2405.04434",
    weights={
        **W_QUERY,
        "W_latent": lambda c: nn.Linear(c.d_in, c.latent_dim, bias=False),
        "W_up_key": lambda c: nn.Linear(c.latent_dim, c.n_heads * c.head_dim, bias=False),
    },
    shape=lambda c: (1, c.latent_dim),
    refuses=_latent_refuses,
)
def latent_score(a: MapWeights, x: Inputs) -> tuple[Queries, Keys]:
    """Read keys and values from one narrow latent c, which is all that decoding keeps.

    The absorbed form: (x W_query_h) . (c W_up_key_h) = (x W_query_h W_up_key_h^T) . c, so that c
    is the one key of all heads.
    """
    H, D, L = a.config.n_heads, a.config.head_dim, a.config.latent_dim
    q = split_heads(a.W_query(x), H)  # [B, H, T, D]
    up_key = a["W_up_key"].weight.reshape(H, D, L)
    # [B, H, T, D] x [H, D, L] -> [B, H, T, L]; the key is c, [B, 1, T, L].
    return q @ up_key, a["W_latent"](x)[:, None]


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
        "W_query": lambda c: nn.Linear(c.d_in, 2 * c.n_heads * c.head_dim, bias=c.qkv_bias),
        **W_KEY,
    },
    queries_per_head=2,
    affine=False,
    refuses=lambda c: "" if c.output == "differential" else _PAIRED,
)
def paired(a: MapWeights, x: Inputs) -> tuple[Queries, Keys]:
    """Make two queries for each head, which share its key and its value."""
    # [B, 2 H, T, D]: heads 2h and 2h + 1 are the pair of head h.
    q = split_heads(a.W_query(x), 2 * a.config.n_heads)
    return q, split_heads(a.W_key(x), a.config.n_kv_heads)


# Value maps.


def _latent_after(a: MapWeights, y: Float[mx.array, "B H T L"]) -> Heads:
    weight = a["W_up_value"].weight.reshape(a.config.n_heads, a.config.value_dim, -1)
    # [B, H, T, L] x [H, L, D] -> [B, H, T, D]
    return y @ weight.swapaxes(1, 2)


@choice(
    "value",
    "latent",
    "v_h = c W_up_value_h",
    source="multi-head latent attention, DeepSeek-V2, arXiv:2405.04434",
    weights={
        "W_up_value": lambda c: nn.Linear(c.latent_dim, c.n_kv_heads * c.value_dim, bias=False)
    },
    after=_latent_after,
    cache="k",
    refuses=_latent_refuses,
)
def latent_value(a: MapWeights, c: Float[mx.array, "B T L"], k: Keys) -> Values:
    """Return the values of the latent c, which the cache holds."""
    return split_heads(a["W_up_value"](c), a.config.n_kv_heads)


def _reads_more_than_x(c: AttentionConfig) -> str:
    """Refuse a cache of x."""
    if c.score == "merged":
        return f"value={c.value} is not a function of only x, and score=merged caches only x"
    return ""


@choice(
    "value",
    "residual",
    "v_h = l_1 v_h of the first layer + l_2 x W_value_h",
    input_weights=("W_value",),
    source="value residual learning, arXiv:2410.17897",
    weights={**W_VALUE, "value_mix": lambda c: mx.array([0.5, 0.5])},
    carries=True,
    affine=False,
    refuses=_reads_more_than_x,
)
def residual_value(a: MapWeights, x: Inputs, k: Keys, carry: Carry) -> Values:
    """Mix the first layer's values into the values of every layer."""
    v = split_heads(a.W_value(x), a.config.n_kv_heads)
    # The first layer's own values; there both terms are the same.
    if carry.first_values is None:
        carry.first_values = v
    return a["value_mix"][0] * carry.first_values + a["value_mix"][1] * v


# Output maps.


@choice(
    "output",
    "gated",
    "y = (concat(heads) * sigmoid(x W_gate)) out_proj",
    source="gated attention, arXiv:2505.06708",
    weights={
        **OUT_PROJ,
        "W_gate": lambda c: nn.Linear(c.d_in, out_width(c), bias=False),
    },
    affine=False,
)
def gated_output(a: MapWeights, heads: Heads, x: Inputs) -> Outputs:
    """Gate every number of the heads' output."""
    # [B, T, H D] * [B, T, H D]
    return a.out_proj(merge_heads(heads) * mx.sigmoid(a["W_gate"](x)))


@choice(
    "output",
    "head_gated",
    "y = concat(head_h * sigmoid(x W_gate)_h) out_proj",
    source="gated attention, arXiv:2505.06708 (headwise)",
    weights={**OUT_PROJ, "W_gate": lambda c: nn.Linear(c.d_in, c.n_heads, bias=False)},
    affine=False,
)
def head_gated_output(a: MapWeights, heads: Heads, x: Inputs) -> Outputs:
    """Gate each head as a whole."""
    gates = mx.sigmoid(a["W_gate"](x)).swapaxes(1, 2)[..., None]  # [B, H, T, 1]
    return a.out_proj(merge_heads(heads * gates))


@choice(
    "output",
    "differential",
    "y = concat(head_2h - sigmoid(x W_lambda)_h head_2h+1) out_proj",
    source="differential attention, version 2 (Microsoft, 2026)",
    weights={
        **OUT_PROJ,
        "W_lambda": lambda c: nn.Linear(c.d_in, c.n_heads, bias=False),
    },
    affine=False,
    refuses=lambda c: "" if c.score == "paired" else _PAIRED,
)
def differential_output(a: MapWeights, heads: Heads, x: Inputs) -> Outputs:
    """Subtract two softmaxes over the same keys and values."""
    weight = mx.sigmoid(a["W_lambda"](x)).swapaxes(1, 2)[..., None]  # [B, H, T, 1]
    return a.out_proj(merge_heads(heads[:, ::2] - weight * heads[:, 1::2]))


@choice(
    "output",
    "exclusive",
    "y = concat(head_h - (head_h . v_h) v_h / |v_h|^2) out_proj",
    input_weights=(),
    source="exclusive self-attention, arXiv:2603.09078",
    weights=OUT_PROJ,
    affine=False,
    refuses=lambda c: (
        ""
        if c.value in ("linear", "identity")
        else f"output=exclusive needs a value that only x gives, and value={c.value} is not"
    ),
)
def exclusive_output(a: MapWeights, heads: Heads, x: Inputs) -> Outputs:
    """Remove the direction of the token's own value from each head."""
    v = a.maps.value.apply(a, x, heads)  # reads only x, not the keys
    v = mx.repeat(v, heads.shape[1] // v.shape[1], axis=1)
    # [B, H, T, 1]: how much of v is in the head, times |v|^2.
    along = (heads * v).sum(axis=-1, keepdims=True)
    lengths = (v * v).sum(axis=-1, keepdims=True)
    # The small number keeps a value of 0 from dividing by 0.
    return a.out_proj(merge_heads(heads - along * v / (lengths + 1e-12)))
