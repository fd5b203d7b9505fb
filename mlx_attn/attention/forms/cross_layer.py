"""Layers that read the keys and values of the layer before (arXiv:2405.12981).

With kv_sharing=N the first layer of N makes keys and values, `cross_layer="source"`, and the others
read them: `layer.EARLIER` has their maps.
"""

from mlx_attn.attention.catalog import row

row(
    "cross-layer",
    "every second layer reads the keys and values of the layer before; --kv-sharing N",
    "k, v of layer 2 l + 1 = k, v of layer 2 l",
    kv_sharing=2,
    source="cross-layer attention, arXiv:2405.12981",
)
