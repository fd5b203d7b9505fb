"""The key is the value, too (arXiv:2606.04032): half the cache.

Of keyless attention (arXiv:2606.21848) this is depth 2; at depth 3 a trained matrix stands between
query and value.
"""

from mlx_attn.attention.catalog import FORMS, choice, row
from mlx_attn.attention.config import AttentionConfig
from mlx_attn.attention.layer import Inputs, Keys, MapWeights, Values


def _needs_other_keys(config: AttentionConfig) -> str:
    """Refuse keys that are not one for each value head, and as wide as the values."""
    score = config.choice("score")
    keys, values = score.shape(config), (config.n_kv_heads, config.value_dim)  # heads, width
    if score.cache == "kv" and keys == values:
        return ""
    return (
        f"value=key uses each head's key as its value: it needs {values[0]} keys of {values[1]} "
        f"numbers, and score={config.score} makes {keys[0]} of {keys[1]}: use score=separate "
        "without value_dim"
    )


@choice(
    "value",
    "key",
    "v_h = k_h",
    input_weights=(),
    reads_keys=True,
    source="Kayyam et al., arXiv:2606.04032; keyless attention (depth 2), arXiv:2606.21848",
    refuses=_needs_other_keys,
)
def key_as_value(layer: MapWeights, x: Inputs, k: Keys) -> Values:
    """Use the key as the value."""
    return k  # [B, H_kv, T, D], before its rotation


row(
    "key-as-value",
    "the key is used as the value: half the cache; also called keyless",
    group=FORMS,
    value="key",
    alias="keyless",
)
