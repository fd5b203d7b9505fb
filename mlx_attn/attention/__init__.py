"""The heart: attention as three maps, each of which can be replaced.

Read `attention` from top to bottom, then `maps`. Every variant is a file in `forms`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mlx_attn.attention.catalog import VARIANTS, Choice, Variant, choice_of, find_variant
from mlx_attn.attention.config import AttentionConfig

if TYPE_CHECKING:
    from mlx_attn.attention.attention import Attention, CausalAttention, MultiHeadAttention
    from mlx_attn.attention.catalog import choice, register
    from mlx_attn.attention.layer import MapWeights

__all__ = [
    "VARIANTS",
    "Attention",
    "AttentionConfig",
    "CausalAttention",
    "Choice",
    "MapWeights",
    "MultiHeadAttention",
    "Variant",
    "choice",
    "choice_of",
    "find_variant",
    "register",
]


def __getattr__(name: str) -> Any:
    """Import a name when it is first used, so that the command line's help is quick."""
    if name in __all__:
        import_module(f"{__name__}.forms")  # first, so that a plugin cannot take the name of one
        homes = {"MapWeights": "layer", "choice": "catalog", "register": "catalog"}
        return getattr(import_module(f"{__name__}.{homes.get(name, 'attention')}"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
