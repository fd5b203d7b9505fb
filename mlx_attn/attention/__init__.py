"""The heart: attention as three maps, each of which can be replaced. Readable alone.

Start with `module`, then `score`, `value`, `output`; `variants` is the table of named choices.
"""

from typing import TYPE_CHECKING

from mlx_attn.attention.config import AttentionConfig
from mlx_attn.attention.variants import VARIANTS, Variant, find_variant
from mlx_attn.lazy import lazily

if TYPE_CHECKING:
    from mlx_attn.attention.book import CausalAttention, MultiHeadAttention
    from mlx_attn.attention.cache import AttentionCache
    from mlx_attn.attention.cost import AttentionCost, attention_cost
    from mlx_attn.attention.module import Attention

__all__ = [
    "VARIANTS",
    "Attention",
    "AttentionCache",
    "AttentionConfig",
    "AttentionCost",
    "CausalAttention",
    "MultiHeadAttention",
    "Variant",
    "attention_cost",
    "find_variant",
]

__getattr__ = lazily(
    __name__,
    {
        "Attention": "module",
        "AttentionCache": "cache",
        "AttentionCost": "cost",
        "CausalAttention": "book",
        "MultiHeadAttention": "book",
        "attention_cost": "cost",
    },
)
