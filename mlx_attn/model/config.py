"""What a GPT is: the book's configuration keys, and those that change one part of it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from mlx_attn.attention.config import AttentionConfig
from mlx_attn.errors import ConfigError, nearest

CHOICES = {
    "norm": ("layernorm", "rmsnorm"),
    "activation": ("gelu", "relu2"),
    "start": ("book", "gpt2", "zero"),
}
"""The keys that are one of a few words, besides those of attention."""

BLOCKS: dict[str, dict[str, Any]] = {
    "book": {"norm": "layernorm", "activation": "gelu", "bias": True},
    "modern": {"norm": "rmsnorm", "activation": "relu2", "bias": False},
}
"""Two blocks by name: the book's, and one in today's style."""


def _key(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, slots=True, kw_only=True)
class GPTConfig:
    """A GPT's sizes and choices. Every key's meaning is its `help`, which the command line shows.

    Keys with the value 0 are derived and stored: head_dim, value_dim, n_kv_heads, scale,
    hidden_dim.
    """

    vocab_size: int = _key(256, "tokens in the vocabulary")
    context_length: int = _key(128, "longest sequence, in tokens")
    emb_dim: int = _key(128, "width of the residual stream")
    n_heads: int = _key(4, "attention heads")
    n_layers: int = _key(4, "transformer blocks")
    drop_rate: float = _key(0.0, "dropout of embeddings, attention weights and branches")
    qkv_bias: bool = _key(False, "biases in the query, key and value maps")
    n_kv_heads: int = _key(0, "key and value heads: fewer than n_heads is GQA, 1 is MQA")
    head_dim: int = _key(0, "width of one head (0: emb_dim / n_heads)")
    value_dim: int = _key(0, "width of one value head (0: head_dim)")
    hidden_dim: int = _key(0, "width of the feed-forward layer (0: 4 emb_dim)")
    scale: float = _key(0.0, "factor of the attention scores (0: 1 / sqrt(head_dim))")
    score: str = _key("separate", "score map")
    value: str = _key("linear", "value map")
    output: str = _key("linear", "output map")
    position: str = _key("learned", "positions: learned, alibi, rope or none")
    qk_norm: bool = _key(False, "RMS-normalise queries and keys")
    merged_start: str = _key("product", "start of merged matrices: product or matched")
    norm: str = _key("layernorm", "normalisation: layernorm or rmsnorm")
    activation: str = _key("gelu", "feed-forward activation: gelu or relu2")
    bias: bool = _key(True, "biases in the output map, the feed-forward layer and the norms")
    tied_head: bool = _key(False, "read logits with the token embedding's matrix")
    start: str = _key("gpt2", "initialisation: book, gpt2 or zero")

    def __post_init__(self):
        for key, choices in CHOICES.items():
            if getattr(self, key) not in choices:
                raise ConfigError(
                    f"{key}='{getattr(self, key)}' must be one of {', '.join(choices)}"
                )
        for key in ("vocab_size", "context_length", "emb_dim", "n_heads", "n_layers"):
            if getattr(self, key) < 1:
                raise ConfigError(f"{key}={getattr(self, key)} must be at least 1")
        attention = self.attention()
        for key in ("head_dim", "value_dim", "n_kv_heads", "scale"):
            object.__setattr__(self, key, getattr(attention, key))
        object.__setattr__(self, "hidden_dim", self.hidden_dim or 4 * self.emb_dim)
        if self.hidden_dim < 1:
            raise ConfigError(f"hidden_dim={self.hidden_dim} must be at least 1")

    def attention(self) -> AttentionConfig:
        """The configuration of each attention layer."""
        return AttentionConfig(
            d_in=self.emb_dim,
            d_out=self.emb_dim,
            context_length=self.context_length,
            out_bias=self.bias,
            residual_gain=self.output == "none",
            **{key: getattr(self, key) for key in _ATTENTION_KEYS},
        )

    def as_dict(self) -> dict[str, Any]:
        """All keys with their values, for a file."""
        return asdict(self)


_ATTENTION_KEYS = (
    "n_heads",
    "head_dim",
    "value_dim",
    "n_kv_heads",
    "scale",
    "score",
    "value",
    "output",
    "qkv_bias",
    "position",
    "qk_norm",
    "merged_start",
    "drop_rate",
)


def config_from(settings: Mapping[str, Any]) -> GPTConfig:
    """A configuration from a mapping, such as a file's.

    Raises:
        ConfigError: A key is unknown (the nearest is named) or a value cannot work.
    """
    known = [f.name for f in fields(GPTConfig)]
    for key in settings:
        if key not in known:
            raise ConfigError(f"unknown model setting '{key}'{nearest(key, known)}")
    return GPTConfig(**settings)
