"""Heads are multiplied by gates between 0 and 1 that x sets (arXiv:2505.06708)."""

import mlx.core as mx
import mlx.nn as nn

from mlx_attn.attention.catalog import row
from mlx_attn.attention.layer import (
    OUT_PROJ,
    Heads,
    Inputs,
    MapWeights,
    Outputs,
    choice,
    merge_heads,
    out_width,
)


@choice(
    "output",
    "gated",
    "y = (concat(heads) * sigmoid(x W_gate)) out_proj",
    source="gated attention, arXiv:2505.06708",
    weights={
        **OUT_PROJ,
        "W_gate": lambda config: nn.Linear(config.d_in, out_width(config), bias=False),
    },
    affine=False,
)
def gated_output(layer: MapWeights, heads: Heads, x: Inputs) -> Outputs:
    """Gate every number of the heads' output."""
    # [B, T, H D] * [B, T, H D]
    return layer.out_proj(merge_heads(heads) * mx.sigmoid(layer["W_gate"](x)))


@choice(
    "output",
    "head_gated",
    "y = concat(head_h * sigmoid(x W_gate)_h) out_proj",
    source="gated attention, arXiv:2505.06708 (headwise)",
    weights={
        **OUT_PROJ,
        "W_gate": lambda config: nn.Linear(config.d_in, config.n_heads, bias=False),
    },
    affine=False,
)
def head_gated_output(layer: MapWeights, heads: Heads, x: Inputs) -> Outputs:
    """Gate each head as a whole."""
    gates = mx.sigmoid(layer["W_gate"](x)).swapaxes(1, 2)[..., None]  # [B, H, T, 1]
    return layer.out_proj(merge_heads(heads * gates))


row(
    "gated",
    "y = (concat(heads) * sigmoid(x W_gate)) out_proj",
    "a gate for every output number of the heads",
    output="gated",
)
row(
    "head-gated",
    "y = concat(head_h * sigmoid(x W_gate)_h) out_proj",
    "one gate for each head",
    output="head_gated",
)
