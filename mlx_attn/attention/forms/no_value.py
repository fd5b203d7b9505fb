"""No W_value: a head passes on its own slice of x (arXiv:2311.01906)."""

import mlx.core as mx
from jaxtyping import Float

from mlx_attn.attention.catalog import FORMS, choice, row
from mlx_attn.attention.forms.no_query import needs_slices
from mlx_attn.attention.layer import Heads, Inputs, Keys, MapWeights, Values, split_heads


def _slice_after(layer: MapWeights, y: Float[mx.array, "B H T C"]) -> Heads:
    D, group = layer.config.value_dim, layer.config.n_heads // layer.config.n_kv_heads  # H / H_kv
    # Head h needs only the columns of its value head's slice.
    slices = [y[:, h, :, h // group * D : (h // group + 1) * D] for h in range(y.shape[1])]
    return mx.stack(slices, axis=1)  # H times [B, T, D] -> [B, H, T, D]


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
    return split_heads(x, layer.config.n_kv_heads)  # [B, T, C] -> [B, H_kv, T, C / H_kv]


row(
    "no-value",
    "the value is the head's own slice of x",
    group=FORMS,
    value="identity",
)
row(
    "no-value-no-out-proj",
    "attention only moves slices of x to other tokens",
    "v_h = x[slice h], y = g concat(heads)",
    group=FORMS,
    value="identity",
    output="none",
)
row(
    "key-only",
    "only W_key and out_proj are trained: queries and values are slices of x",
    "q_h = x[slice h], k = x W_key, v_h = x[slice h]",
    group=FORMS,
    score="no_query",
    value="identity",
)
