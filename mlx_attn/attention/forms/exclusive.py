"""Heads lose the direction of their token's own value (arXiv:2603.09078)."""

import mlx.core as mx

from mlx_attn.attention.catalog import choice, row
from mlx_attn.attention.config import AttentionConfig
from mlx_attn.attention.layer import OUT_PROJ, Heads, Inputs, MapWeights, Outputs
from mlx_attn.attention.maps import linear_output


def _why_not(config: AttentionConfig) -> str:
    needs = "output=exclusive needs a value that only its token's x gives, and"
    if config.value not in ("linear", "identity"):
        return f"{needs} value={config.value} is not"
    if config.short_conv != "none":
        return f"{needs} short_conv={config.short_conv} mixes it with earlier ones: leave one out"
    is_reader = config.cross_layer == "reader"
    return f"{needs} kv_sharing reads another layer's: leave one out" if is_reader else ""


@choice(
    "output",
    "exclusive",
    "y = concat(head_h - (head_h . v_h) v_h / |v_h|^2) out_proj",
    input_weights=(),
    source="exclusive self-attention, arXiv:2603.09078",
    weights=OUT_PROJ,
    affine=False,
    refuses=_why_not,
)
def exclusive_output(layer: MapWeights, heads: Heads, x: Inputs) -> Outputs:
    """Remove the direction of the token's own value from each head."""
    v = layer.maps.value.apply(layer, x, heads)  # reads only x, not the keys
    v = mx.repeat(v, heads.shape[1] // v.shape[1], axis=1)  # [B, H, T, D]
    # [B, H, T, 1]: how much of v is in the head, times |v|^2.
    along = (heads * v).sum(axis=-1, keepdims=True)
    lengths = (v * v).sum(axis=-1, keepdims=True)
    # The small number keeps a value of 0 from dividing by 0.
    return linear_output(layer, heads - along * v / (lengths + 1e-12), x)


row(
    "exclusive",
    "heads lose the direction of the token's own value",
    output="exclusive",
)
