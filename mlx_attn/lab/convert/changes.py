"""The configuration keys that a conversion changes, from a configuration and a rank (0: none).

Everything else is carried along, the scale of the scores above all.
"""

from collections.abc import Mapping
from typing import Any

from mlx_attn.errors import ConfigError
from mlx_attn.model import GPTConfig

Keys = Mapping[str, Any]


def merged(config: GPTConfig, rank: int) -> Keys:
    """Scores from one matrix per head."""
    return {"score": "merged", **_without_keys(config)}


def separate(config: GPTConfig, rank: int) -> Keys:
    """Scores from two maps; by default as wide as what they come from."""
    _check_rank(rank, config.emb_dim, "emb_dim")
    width = config.n_heads * config.head_dim if config.score == "collaborative" else config.head_dim
    head_dim = rank or min(width, config.emb_dim)
    return {"score": "separate", "head_dim": head_dim, **_without_keys(config)}


def standard(config: GPTConfig, rank: int) -> Keys:
    """The book's three maps."""
    scores = {} if config.score == "separate" else separate(config, rank)
    return {**scores, "value": "linear", "output": "linear"}


def merged_output(config: GPTConfig, rank: int) -> Keys:
    """One matrix per head in place of W_value and out_proj."""
    return {"value": "linear", "output": "merged", "n_kv_heads": config.n_heads}


def merged_both(config: GPTConfig, rank: int) -> Keys:
    """Both products as whole matrices; shared keys and values are repeated."""
    return {**merged(config, rank), **merged_output(config, rank)}


def separate_output(config: GPTConfig, rank: int) -> Keys:
    """W_value and out_proj."""
    _check_rank(rank, config.emb_dim, "emb_dim")
    return {"value": "linear", "output": "linear", "value_dim": rank or config.value_dim}


def no_out_proj(config: GPTConfig, rank: int) -> Keys:
    """Heads that write their own slice of y; the bias of out_proj moves into W_value."""
    return {
        "value": "linear",
        "output": "none",
        "value_dim": config.emb_dim // config.n_heads,
        "qkv_bias": config.qkv_bias or (config.bias and config.output != "none"),
    }


def no_query(config: GPTConfig, rank: int) -> Keys:
    """X as the query."""
    return {"score": "no_query", "head_dim": config.emb_dim, **_without_keys(config)}


def no_key(config: GPTConfig, rank: int) -> Keys:
    """X as the key."""
    return {"score": "no_key", "head_dim": config.emb_dim, **_without_keys(config)}


def shrunk(config: GPTConfig, rank: int) -> Keys:
    """Keys, and values where out_proj reads them, less their redundant weights."""
    values = {"value": "shrunk"} if config.output == "linear" else _without_keys(config)
    return {"score": "shrunk", **values}


def collaborative(config: GPTConfig, rank: int) -> Keys:
    """Maps shared by all heads."""
    _check_rank(rank, config.n_heads * config.emb_dim, "n_heads * emb_dim")
    if rank % config.n_heads:
        raise ConfigError(f"rank {rank} is shared, so it must be a multiple of {config.n_heads}")
    head_dim = rank // config.n_heads or config.head_dim
    return {"score": "collaborative", "head_dim": head_dim, **_without_keys(config)}


def slim(config: GPTConfig, rank: int) -> Keys:
    """Values made from keys."""
    return {"value": "from_key"}


def _without_keys(config: GPTConfig) -> Keys:
    """Values made from keys are written out, where the keys are about to change."""
    return {"value": "linear"} if config.value in ("key", "from_key") else {}


def _check_rank(rank: int, largest: int, name: str) -> None:
    if not 0 <= rank <= largest:
        raise ConfigError(f"rank {rank} must be from 1 to {name}={largest}")
