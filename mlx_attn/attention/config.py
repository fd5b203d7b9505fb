"""What one attention layer is: sizes, a choice for every map, positions.

A configuration is a value that can be written to a file. It is checked once, here; the modules
built from it never check again.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from mlx_attn.attention.catalog import CHOICES, choice_of
from mlx_attn.errors import ConfigError
from mlx_attn.keys import check_number, check_settings, setting

_WIDEST = 2**24  # more than fits into any machine


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSettings:
    """The settings of attention that a layer and a whole model have. Every `help` is its meaning.

    Sizes with the value 0 are derived and stored: head_dim, value_dim, n_kv_heads, latent_dim and
    scale. Separate and merged forms have one scale, so that converted models keep their scores;
    heads that share keys are grouped-query attention (arXiv:2305.13245).
    """

    n_heads: int = setting(1, "attention heads", low=1)
    drop_rate: float = setting(0.0, "dropout of embeddings, attention weights and branches")
    qkv_bias: bool = setting(False, "biases in the query, key and value maps")
    n_kv_heads: int = setting(0, "key and value heads (fewer is GQA, 1 MQA)", high=_WIDEST)
    head_dim: int = setting(0, "width of one head (0: emb_dim / n_heads)", high=_WIDEST)
    value_dim: int = setting(0, "width of one value head (0: head_dim)", high=_WIDEST)
    scale: float = setting(0.0, "factor of the attention scores (0: 1 / sqrt(head_dim))")
    score: str = setting("separate", "score map; `mlx-attn variants --choices` lists all")
    value: str = setting("linear", "value map: how x becomes values")
    output: str = setting("linear", "output map: how heads become the output")
    logits: str = setting("none", "map of the scores before the softmax; several as a+b")
    mixing: str = setting("softmax", "how logits become attention weights")
    latent_dim: int = setting(0, "width of score latent's latent (0: emb_dim / 2)", high=_WIDEST)
    window: int = setting(0, "tokens that a token sees, itself included (0: all)", high=2**31 - 1)
    position: str = setting("learned", "positions: learned, alibi, rope or none")
    qk_norm: bool = setting(False, "RMS-normalise queries and keys")
    short_conv: str = setting(
        "none", "convolve queries, keys and values over 4 tokens", words=("none", "linear", "silu")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig(AttentionSettings):
    """Sizes and choices of one causal attention layer."""

    # Whether an output without a map is scaled by one trained number, as in a GPT.
    residual_gain: ClassVar[bool] = False

    d_in: int  # width C of the input
    d_out: int  # width of the output
    context_length: int  # longest sequence T
    out_bias: bool = setting(True, "a bias in the output map")
    # "source" if later layers read this layer's keys and values, "reader" if it reads those of an
    # earlier layer and has none itself (arXiv:2405.12981), else "".
    cross_layer: str = setting("", "its role in cross-layer attention")

    def __post_init__(self):
        check_settings(self)
        for name in ("d_in", "d_out", "context_length"):
            check_number(name, getattr(self, name), low=1)
        self._derive_sizes()
        self._check_combination()  # last, because a choice reads the derived sizes

    def _derive_sizes(self) -> None:
        """Fill in the sizes that are 0 from the others; raise a ConfigError if they do not fit."""
        if not self.head_dim and self.d_out % self.n_heads:
            raise ConfigError(
                f"emb_dim={self.d_out} must be a multiple of n_heads={self.n_heads}: "
                "change one of them, or set head_dim"
            )
        head_dim = self.head_dim or self.d_out // self.n_heads
        derived = {
            "head_dim": head_dim,
            "value_dim": head_dim,
            "n_kv_heads": self.n_heads,
            "latent_dim": max(self.d_in // 2, 1),
            # The variance of q . k grows with head_dim; this keeps the scores' spread near 1.
            "scale": head_dim**-0.5,
        }
        for key, value in derived.items():
            object.__setattr__(self, key, getattr(self, key) or value)
        if not 0 <= self.drop_rate < 1:
            raise ConfigError(f"drop_rate={self.drop_rate} must be in [0, 1)")
        if self.n_heads % self.n_kv_heads:
            raise ConfigError(f"n_kv_heads={self.n_kv_heads} must divide n_heads={self.n_heads}")

    def _check_combination(self) -> None:
        """Raise a ConfigError if a choice refuses the sizes, or the other choices."""
        if self.position == "rope" and (width := self.key_width) % 2:
            raise ConfigError(f"rope rotates pairs of coordinates: width {width} must be even")
        for choice in (choice for name in CHOICES for choice in self.choices(name)):
            if reason := choice.refuses(self):
                raise ConfigError(reason)

    def choice(self, map_name: str) -> Any:
        """Return the choice of score, value, output or mixing; of position a user's or None."""
        return choice_of(map_name, getattr(self, map_name))

    def choices(self, map_name: str) -> tuple[Any, ...]:
        """Return the choices of a map: one; any number of logits hooks; a position if it is one."""
        words = getattr(self, map_name)
        if map_name == "logits":
            return tuple(choice_of("logits", word) for word in words.split("+") if word != "none")
        return (chosen,) if (chosen := self.choice(map_name)) else ()

    @property
    def n_maps(self) -> int:
        """Attention maps: one for each head, or as many as a head has queries."""
        return self.n_heads * self.choice("score").queries_per_head

    @property
    def key_width(self) -> int:
        """Width of a query and of a key."""
        return self.choice("score").shape(self)[1]

    @property
    def rotates(self) -> bool:
        """Return True if queries and keys change with their positions, as by RoPE."""
        return self.position == "rope" or bool(self.choices("position"))

    @property
    def caches_tokens(self) -> bool:
        """Return True if decoding caches something of each token, and not a state or nothing."""
        return self.choice("mixing").recurs is None and self.cross_layer != "reader"

    @property
    def cache_window(self) -> int:
        """Tokens that decoding keeps: the window, or 0 for all if a hook needs all of them."""
        hooks = (*self.choices("logits"), *self.choices("mixing"))
        return 0 if any(hook.remembers_all for hook in hooks) else self.window
