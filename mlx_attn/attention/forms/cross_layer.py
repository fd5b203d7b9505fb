"""Layers that read the keys and values of the layer before (arXiv:2405.12981).

With kv_sharing=N the first layer of N makes keys and values, `cross_layer="source"`, and the others
read them, `cross_layer="reader"`.
"""

from typing import Any

from mlx_attn.attention.cache import Positions
from mlx_attn.attention.catalog import choice, row
from mlx_attn.attention.config import AttentionConfig
from mlx_attn.attention.layer import W_QUERY, Inputs, Keys, MapWeights, Queries, Values, split_heads
from mlx_attn.errors import ConfigError

_PAPER = "cross-layer attention, arXiv:2405.12981"


def _not_a_reader(config: AttentionConfig) -> str:
    """Refuse a layer of its own."""
    if config.cross_layer == "reader":
        return ""
    return "score=earlier and value=earlier read another layer: set kv_sharing, --kv-sharing 2"


def _shared(carry: dict[str, Any]) -> tuple[Keys, Values, Positions]:
    """Return the keys and values of the last layer that shared its own.

    Raises:
        ConfigError: No layer has, as in a layer that is called outside its model.
    """
    if "shared" not in carry:
        raise ConfigError("this layer reads the keys of an earlier one: call the whole model")
    return carry["shared"]


@choice(
    "score",
    "earlier",
    "q_h = x W_query_h, k_h of an earlier layer",
    source=_PAPER,
    weights=W_QUERY,
    carries=True,
    refuses=_not_a_reader,
)
def earlier_keys(layer: MapWeights, x: Inputs, carry: dict[str, Any]) -> tuple[Queries, Keys]:
    """Read the keys of an earlier layer, normalized and rotated there."""
    # [B, T, C] -> [B, H, T, D], and [B, H_kv, T_k, D] with the cached keys
    return split_heads(layer.W_query(x), layer.config.n_heads), _shared(carry)[0]


@choice(
    "value",
    "earlier",
    "v_h of an earlier layer",
    source=_PAPER,
    carries=True,
    refuses=_not_a_reader,
)
def earlier_values(layer: MapWeights, x: Inputs, k: Keys, carry: dict[str, Any]) -> Values:
    """Read the values of an earlier layer."""
    return _shared(carry)[1]


row(
    "cross-layer",
    "every second layer reads the keys and values of the layer before; --kv-sharing N",
    "k, v of layer 2 l + 1 = k, v of layer 2 l",
    kv_sharing=2,
    source=_PAPER,
)
