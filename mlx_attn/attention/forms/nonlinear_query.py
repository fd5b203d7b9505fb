"""A narrow network of x, added to x, in the place of W_query (arXiv:2603.13381).

The author's gelu is the exact one; this is the book's.
"""

import mlx.nn as nn

from mlx_attn.attention.catalog import choice, row
from mlx_attn.attention.forms.no_query import needs_slices
from mlx_attn.attention.layer import W_KEY, Inputs, Keys, MapWeights, Queries, split_heads
from mlx_attn.machine.operations import gelu


@choice(
    "score",
    "nonlinear_query",
    "q_h = (x + norm(gelu(norm(x) W_down) W_up))[slice h] / 2, k_h = x W_key_h",
    source="Karbevski, arXiv:2603.13381",
    weights={
        # Two halves of W_query's numbers, C -> C / 2 -> C.
        "W_down": lambda config: nn.Linear(config.d_in, max(config.d_in // 2, 1), config.qkv_bias),
        "W_up": lambda config: nn.Linear(max(config.d_in // 2, 1), config.d_in, config.qkv_bias),
        **W_KEY,
        "norm_in": lambda config: nn.RMSNorm(config.d_in),
        "norm_out": lambda config: nn.LayerNorm(config.d_in, bias=config.qkv_bias),
    },
    affine=False,
    refuses=lambda config: needs_slices(
        "score=nonlinear_query", config.n_heads, config.head_dim, config
    ),
)
def nonlinear_query(layer: MapWeights, x: Inputs) -> tuple[Queries, Keys]:
    """Return the mean of x and a narrow network of x, with the parameter count of W_query."""
    # [B, T, C] -> [B, T, C / 2] -> [B, T, C]
    residual = layer["norm_out"](layer["W_up"](gelu(layer["W_down"](layer["norm_in"](x)))))
    q = split_heads((x + residual) / 2, layer.config.n_heads)  # [B, H, T, C / H]
    return q, split_heads(layer.W_key(x), layer.config.n_kv_heads)


row(
    "nonlinear-query",
    "a narrow network of x, added to x, replaces W_query; same number of weights",
    score="nonlinear_query",
)
