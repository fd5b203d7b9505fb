"""No W_query or no W_key: a head takes its own slice of x (arXiv:2510.23912)."""

from mlx_attn.attention.catalog import FORMS, choice, row
from mlx_attn.attention.config import AttentionConfig
from mlx_attn.attention.layer import W_KEY, W_QUERY, Inputs, Keys, MapWeights, Queries, split_heads


def needs_slices(word: str, heads: int, width: int, config: AttentionConfig) -> str:
    """Refuse heads that are slices of x unless they make up all of it."""
    if heads * width == config.d_in:
        return ""
    return (
        f"{word} gives each head a slice of x, so {heads} heads of {width} must "
        f"make up emb_dim={config.d_in}: change n_heads, n_kv_heads or head_dim"
    )


@choice(
    "score",
    "no_query",
    "q_h = x[slice h], k_h = x W_key_h",
    source="Karbevski and Mijoski, arXiv:2510.23912, who halve the scores",
    weights=W_KEY,
    refuses=lambda config: needs_slices("score=no_query", config.n_heads, config.head_dim, config),
)
def no_query(layer: MapWeights, x: Inputs) -> tuple[Queries, Keys]:
    """Take the head's own slice of x as its query: S_h = I_h W_key_h^T."""
    # [B, T, C] -> [B, H, T, C / H], without a product; a key has that width, too.
    q = split_heads(x, layer.config.n_heads)
    return q, split_heads(layer.W_key(x), layer.config.n_kv_heads)


@choice(
    "score",
    "no_key",
    "q_h = x W_query_h, k_h = x[slice h]",
    source="the mirror image of score=no_query",
    weights=W_QUERY,
    refuses=lambda config: needs_slices("score=no_key", config.n_kv_heads, config.head_dim, config),
)
def no_key(layer: MapWeights, x: Inputs) -> tuple[Queries, Keys]:
    """Take the head's own slice of x as its key, the mirror image of `no_query`."""
    q = split_heads(layer.W_query(x), layer.config.n_heads)  # [B, H, T, C / H_kv]
    return q, split_heads(x, layer.config.n_kv_heads)  # [B, T, C] -> [B, H_kv, T, C / H_kv]


row(
    "no-query",
    "the query is the head's own slice of x",
    group=FORMS,
    score="no_query",
)
row(
    "no-key",
    "the key is the head's own slice of x",
    group=FORMS,
    score="no_key",
)
