"""Gated delta networks (arXiv:2412.06464) with convolutions, and norm and gate after the heads.

The authors' code also draws what convolutions and decays start with.
"""

import mlx.core as mx

from mlx_attn.attention.catalog import choice, row
from mlx_attn.attention.forms.gated import GATED_OUTPUT
from mlx_attn.attention.layer import OUT_PROJ, Heads, Inputs, MapWeights, Outputs, merge_heads
from mlx_attn.attention.maps import linear_output

_GAIN = {"head_gain": lambda config: mx.ones((config.value_dim,))}  # [D], the same for all heads


def _normed(layer: MapWeights, heads: Heads) -> Heads:
    # Divided by the root mean square of each head's D numbers, then times the gain, [D]. With the
    # authors q, hence a head, is multiplied by the scale, which the norm undoes but for their 1e-5.
    squares = (heads * heads).mean(-1, keepdims=True) + 1e-5 / layer.config.scale**2
    return heads * mx.rsqrt(squares) * layer["head_gain"]


@choice(
    "output",
    "normed",
    "y = concat(g * head_h / rms(head_h)) out_proj",
    source="the output norm of gated delta networks, arXiv:2412.06464",
    weights=OUT_PROJ | _GAIN,
    affine=False,
)
def normed_output(layer: MapWeights, heads: Heads, x: Inputs) -> Outputs:
    """Normalize heads to the same size, whatever their weights add up to; all share the gain g."""
    return linear_output(layer, _normed(layer, heads), x)


@choice(
    "output",
    "normed_gated",
    "y = (concat(g * head_h / rms(head_h)) * silu(x W_gate)) out_proj",
    source="gated delta networks, arXiv:2412.06464",
    weights=GATED_OUTPUT | _GAIN,
    affine=False,
)
def normed_gated_output(layer: MapWeights, heads: Heads, x: Inputs) -> Outputs:
    """Gate every number of the normalised heads by x."""
    gate = layer["W_gate"](x)  # [B, T, H D]; silu(gate) = gate sigmoid(gate)
    return layer.out_proj(merge_heads(_normed(layer, heads)) * gate * mx.sigmoid(gate))


row(
    "gated-deltanet",
    "DeltaNet with convolutions of 4 tokens, norm and gate; the authors' value_dim is 2 head_dim",
    "q, k, v = silu(conv(x W)), deltanet, y = (norm(heads) * silu(x W_gate)) out_proj",
    mixing="gated_delta",
    output="normed_gated",
    position="none",
    short_conv="silu",
)
