"""What one attention layer is: sizes, a choice for every map, positions; and the named variants.

A configuration is a value that can be written to a file. It is checked once, here; the modules
built from it never check again. The choices themselves stand in `mlx_attn.attention.maps`, which
registers them when it is imported, as a user's file does.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from mlx_attn.errors import ConfigError, find_row

POSITIONS = ("learned", "alibi", "rope", "none")
MERGED_STARTS = ("product", "matched")
MAPS = {
    "score": "separate",
    "value": "linear",
    "output": "linear",
    "logits": "none",
    "mixing": "softmax",
}
"""What a variant chooses, three maps and two hooks between score and value, with the standard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One choice of a map: its formula, the weights that it trains, what it computes.

    Functions of a configuration are called with an `AttentionConfig`, functions of a layer with an
    `Attention`, whose attributes hold the weights by name.

    Attributes:
        map: The map that it is a choice of, one of `MAPS`.
        name: The word in a configuration.
        formula: What it computes, in the field's letters.
        source: The paper or book section it is from.
        apply: Computes the map: `score(a, x) -> q, k`; `value(a, x, k) -> v`;
            `output(a, heads) -> y`; `logits(a, s) -> s`; `mixing(a, s) -> weights`.
        weights: Makes each of its trained parts by name: a Linear layer, an array, or None where a
            configuration needs none.
        init: Starting weights by name, where they are not drawn as every Linear layer's are.
        shape: Of a score or value map: how many heads its keys or values have, and their width.
        after: Of a value map: the same map applied to softmax_h x, which gives the same heads.
        cache: What decoding keeps of a token: "kv" key and value, "x" the input, "k" the key.
        affine: Whether the map is linear up to a bias. Conversions and spectra need that.
        refuses: Why a configuration cannot use it, and the way out; empty where it can.
    """

    map: str
    name: str
    formula: str
    source: str = ""
    apply: Callable[..., Any]
    weights: Mapping[str, Callable[["AttentionConfig"], Any]] = field(default_factory=dict)
    init: Callable[["AttentionConfig", Callable[..., Any]], Mapping[str, Any]] | None = None
    shape: Callable[["AttentionConfig"], tuple[int, int]] = lambda config: (config.n_kv_heads, 0)
    after: Callable[..., Any] | None = None
    cache: str = "kv"
    affine: bool = True
    refuses: Callable[["AttentionConfig"], str] = lambda config: ""


CHOICES: dict[str, dict[str, Choice]] = {name: {} for name in MAPS}
"""Every registered choice by map and name."""


def register(entry: "Choice | Variant") -> None:
    """Add a choice of a map, or a named variant.

    Raises:
        ConfigError: The name is taken.
    """
    table: dict[str, Any] = VARIANTS if isinstance(entry, Variant) else CHOICES[entry.map]
    if entry.name in table:
        raise ConfigError(f"'{entry.name}' is registered already: choose another name")
    table[entry.name] = entry


def choice_of(map_name: str, name: str) -> Choice:
    """The named choice of a map.

    Raises:
        ConfigError: There is none of that name; all names are listed.
    """
    import_module("mlx_attn.attention.maps")
    table = CHOICES[map_name]
    if name not in table:
        raise ConfigError(f"{map_name}='{name}' must be one of {', '.join(table)}")
    return table[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig:
    """Sizes and choices of one causal attention layer.

    Attributes:
        d_in: Width C of the input.
        d_out: Width of the output.
        context_length: Longest sequence T.
        n_heads: Number of heads H.
        head_dim: Width D of one head; need not be d_out / n_heads. 0: d_out / n_heads.
        value_dim: Width of one value head where it differs from that of queries and keys. 0:
            head_dim.
        n_kv_heads: Key and value heads, each shared by n_heads / n_kv_heads query heads
            (grouped-query attention, arXiv:2305.13245; 1 is multi-query). 0: n_heads.
        scale: Factor of the scores. 0: 1 / sqrt(head_dim), of the separate form for every variant,
            so that converted models keep their scores.
        score: How x becomes queries and keys.
        value: How x becomes values.
        output: How heads become the output.
        logits: A map of the scores before the softmax, or "none".
        mixing: How logits become attention weights.
        qkv_bias: Whether query, key and value maps have biases.
        out_bias: Whether the output map has a bias.
        position: "learned" and "none" change nothing here; "alibi" and "rope" do.
        qk_norm: RMS-normalise queries and keys (arXiv:2302.05442).
        residual_gain: With output "none", scale the output by one trained number.
        merged_start: S starts as W_query W_key^T ("product") or as a Gaussian with the same spread
            of scores ("matched"); VO alike.
        drop_rate: Dropout of the attention weights, in [0, 1).
    """

    d_in: int
    d_out: int
    context_length: int
    n_heads: int = 1
    head_dim: int = 0
    value_dim: int = 0
    n_kv_heads: int = 0
    scale: float = 0.0
    score: str = "separate"
    value: str = "linear"
    output: str = "linear"
    logits: str = "none"
    mixing: str = "softmax"
    qkv_bias: bool = False
    out_bias: bool = True
    position: str = "learned"
    qk_norm: bool = False
    residual_gain: bool = False
    merged_start: str = "product"
    drop_rate: float = 0.0

    def __post_init__(self):
        for key in ("d_in", "d_out", "context_length", "n_heads"):
            _require(getattr(self, key) >= 1, f"{key}={getattr(self, key)} must be at least 1")
        self._derive_sizes()
        for key, words in {"position": POSITIONS, "merged_start": MERGED_STARTS}.items():
            word = getattr(self, key)
            _require(word in words, f"{key}='{word}' must be one of {', '.join(words)}")
        _require(0 <= self.drop_rate < 1, f"drop_rate={self.drop_rate} must be in [0, 1)")
        self._check_heads()
        for name in MAPS:
            reason = choice_of(name, getattr(self, name)).refuses(self)
            _require(not reason, reason)

    def _derive_sizes(self):
        _require(
            bool(self.head_dim) or self.d_out % self.n_heads == 0,
            f"emb_dim={self.d_out} must be a multiple of n_heads={self.n_heads}: "
            "change one of them, or set head_dim",
        )
        self._derive("head_dim", self.d_out // self.n_heads)
        self._derive("value_dim", self.head_dim)
        self._derive("n_kv_heads", self.n_heads)
        self._derive("scale", max(self.head_dim, 1) ** -0.5)

    def _derive(self, key: str, value: int | float):
        if not getattr(self, key):
            object.__setattr__(self, key, value)

    def _check_heads(self):
        for key in ("head_dim", "value_dim"):
            _require(getattr(self, key) >= 1, f"{key}={getattr(self, key)} must be at least 1")
        _require(
            self.n_kv_heads >= 1 and self.n_heads % self.n_kv_heads == 0,
            f"n_heads={self.n_heads} must be a multiple of n_kv_heads={self.n_kv_heads}",
        )
        rotated = self.d_in if self.score == "merged" else self.head_dim
        _require(
            self.position != "rope" or rotated % 2 == 0,
            f"rope rotates pairs of coordinates, and the width {rotated} is odd: use an even one",
        )


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A choice for each map of attention, and its formula in the field's letters.

    The command line's choices, the README's table, the documentation and the parametrised tests all
    read these rows; nothing else lists variants.
    """

    name: str
    score: str = "separate"
    value: str = "linear"
    output: str = "linear"
    logits: str = "none"
    mixing: str = "softmax"
    formula: str
    summary: str

    @property
    def maps(self) -> dict[str, str]:
        """Its choices as configuration keys."""
        return {name: getattr(self, name) for name in MAPS}


_ROWS = (
    Variant(
        name="standard",
        formula="q = x W_query, k = x W_key, v = x W_value, y = concat(heads) out_proj",
        summary="the book's multi-head attention",
    ),
    Variant(
        name="no-out-proj",
        output="none",
        formula="y = g concat(heads)",
        summary="the heads' outputs are concatenated and used as they are",
    ),
    Variant(
        name="merged",
        score="merged",
        formula="q_h = x S_h, k = x",
        summary="W_query_h W_key_h^T is trained as one full-rank matrix S_h",
    ),
    Variant(
        name="merged-no-out-proj",
        score="merged",
        output="none",
        formula="q_h = x S_h, k = x, y = g concat(heads)",
        summary="merged scores and no output projection",
    ),
    Variant(
        name="no-query",
        score="no_query",
        formula="q_h = x[slice h], k = x W_key",
        summary="the query is the head's own slice of x",
    ),
    Variant(
        name="no-key",
        score="no_key",
        formula="q = x W_query, k_h = x[slice h]",
        summary="the key is the head's own slice of x",
    ),
    Variant(
        name="shared-query-key",
        score="shared",
        formula="q = k = x W_query",
        summary="one matrix for query and key: the scores are symmetric",
    ),
    Variant(
        name="collaborative",
        score="collaborative",
        formula="q_h = (x W_query) * m_h, k = x W_key",
        summary="all heads share W_query and W_key; each head has its own mixing vector m_h",
    ),
    Variant(
        name="no-value",
        value="identity",
        formula="v_h = x[slice h]",
        summary="the value is the head's own slice of x",
    ),
    Variant(
        name="no-value-no-out-proj",
        value="identity",
        output="none",
        formula="v_h = x[slice h], y = g concat(heads)",
        summary="attention only moves slices of x about",
    ),
    Variant(
        name="key-as-value",
        value="key",
        formula="v = k = x W_key",
        summary="the key is used as the value: half the cache",
    ),
    Variant(
        name="merged-output",
        output="merged",
        formula="y = sum_h softmax_h x VO_h",
        summary="W_value_h out_proj_h is trained as one C x C matrix per head",
    ),
    Variant(
        name="merged-both",
        score="merged",
        output="merged",
        formula="q_h = x S_h, k = x, y = sum_h softmax_h x VO_h",
        summary="both products are trained as whole matrices",
    ),
)

VARIANTS: dict[str, Variant] = {variant.name: variant for variant in _ROWS}


def find_variant(name: str) -> Variant:
    """The named variant; hyphens and underscores are the same.

    Raises:
        ConfigError: There is none of that name; the nearest name is suggested.
    """
    return find_row(VARIANTS, name, "variant")
