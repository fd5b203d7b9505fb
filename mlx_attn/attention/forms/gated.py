"""Heads are multiplied by gates between 0 and 1 that x sets (arXiv:2505.06708).

head_h = sigmoid(x W_gate)_h * softmax(score_h) x V_h
"""

import mlx.core as mx
import mlx.nn as nn

from mlx_attn.attention.catalog import choice, row
from mlx_attn.attention.layer import (
    OUT_PROJ,
    Heads,
    Inputs,
    MapWeights,
    Outputs,
    out_width,
    split_heads,
)
from mlx_attn.attention.maps import linear_output

GATED_OUTPUT = {
    **OUT_PROJ,
    "W_gate": lambda config: nn.Linear(config.d_in, out_width(config), bias=False),  # C -> H D
}


@choice(
    "output",
    "head_gated",
    "y = concat(head_h * sigmoid(x W_gate)_h) out_proj",
    source="gated attention, arXiv:2505.06708 (headwise)",
    weights={
        **OUT_PROJ,
        "W_gate": lambda config: nn.Linear(config.d_in, config.n_heads, bias=False),  # C -> H
    },
    affine=False,
)
@choice(
    "output",
    "gated",
    "y = (concat(heads) * sigmoid(x W_gate)) out_proj",
    source="gated attention, arXiv:2505.06708",
    weights=GATED_OUTPUT,
    affine=False,
)
def gated_output(layer: MapWeights, heads: Heads, x: Inputs) -> Outputs:
    """Gate every number of the heads' output, or each head as a whole."""
    # [B, H, T, D], or [B, H, T, 1] if a head has one gate.
    gates = split_heads(mx.sigmoid(layer["W_gate"](x)), layer.config.n_heads)
    return linear_output(layer, heads * gates, x)  # [B, T, d_out]


row(
    "gated",
    "a gate for every output number of the heads",
    output="gated",
)
row(
    "head-gated",
    "one gate for each head",
    output="head_gated",
)
