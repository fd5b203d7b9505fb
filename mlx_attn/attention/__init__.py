"""The heart: attention as three maps, each of which can be replaced. Readable alone.

Read `attention` from top to bottom, then `maps`; `config` has the named variants.
"""

from typing import TYPE_CHECKING, Any

from mlx_attn.attention.config import VARIANTS, AttentionConfig, Variant, find_variant

if TYPE_CHECKING:
    from mlx_attn.attention.attention import Attention, CausalAttention, MultiHeadAttention

__all__ = [
    "VARIANTS",
    "Attention",
    "AttentionConfig",
    "CausalAttention",
    "MultiHeadAttention",
    "Variant",
    "find_variant",
]


def __getattr__(name: str) -> Any:
    """Imported when first used, so that the command line's help is quick."""
    if name in __all__:
        from mlx_attn.attention import attention

        return getattr(attention, name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
