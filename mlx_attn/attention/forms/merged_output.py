"""The product of value and output is trained as one matrix: VO_h = W_value_h out_proj_h."""

import mlx.core as mx
import mlx.nn as nn
from jaxtyping import Float

from mlx_attn.attention.catalog import FORMS, ValueMap, choice, row
from mlx_attn.attention.config import AttentionConfig
from mlx_attn.attention.forms.merged import Array
from mlx_attn.attention.layer import (
    Draw,
    Heads,
    Inputs,
    MapWeights,
    Outputs,
    merge_heads,
    out_width,
)


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


WHOLE_VALUE = ValueMap(
    name="whole",
    formula="v = x",
    apply=lambda layer, x, k: x[:, None],  # [B, 1, T, C]
    shape=lambda config: (1, config.d_in),
    after=lambda layer, y: y,
    input_weights=(),
)
"""One value for all heads, x itself: with output=merged the map is inside VO."""


def _merged_output_init(config: AttentionConfig, draw: Draw) -> dict[str, mx.array]:
    # The factors that separate maps with this seed would start with.
    value = draw("W_value", out_width(config), config.d_in)
    output = draw("out_proj", config.d_out, out_width(config), residual=True)
    return {"VO": merge_value_output(value, output, config.n_heads)}  # [d_out, H C]


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
    contains_value=WHOLE_VALUE,
    refuses=lambda config: (
        ""
        if (config.value, config.n_kv_heads) == ("linear", config.n_heads)
        else "output=merged trains W_value and out_proj as one matrix per head: it needs "
        f"value=linear and as many value heads as heads, and has value={config.value} and "
        f"{config.n_kv_heads} of {config.n_heads}"
    ),
)
def merged_output(layer: MapWeights, heads: Heads, x: Inputs | None) -> Outputs:
    """Multiply each head's sum of x by one C x d_out matrix, for W_value and out_proj."""
    # [B, H, T, C] -> [B, T, H C] -> [B, T, d_out]: the product also sums over heads.
    return layer["VO"](merge_heads(heads))


row(
    "merged-output",
    "W_value_h out_proj_h is trained as one C x C matrix per head",
    group=FORMS,
    output="merged",
)
row(
    "merged-both",
    "both products are trained as whole matrices",
    "q_h = x S_h, k = x, y = sum_h softmax_h x VO_h",
    group=FORMS,
    score="merged",
    output="merged",
)
