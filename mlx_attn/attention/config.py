"""What one attention layer is: sizes, the three maps, positions, and what cannot be combined.

A configuration is a value that can be written to a file. It is checked once, here; the modules
built from it never check again.
"""

from dataclasses import dataclass

from mlx_attn.errors import ConfigError, find_row

SCORE_CHOICES = ("separate", "merged", "no_query", "no_key", "shared", "collaborative", "shrunk")
VALUE_CHOICES = ("linear", "identity", "key", "shrunk", "from_key")
OUTPUT_CHOICES = ("linear", "none", "merged")
POSITIONS = ("learned", "alibi", "rope", "none")
MERGED_STARTS = ("product", "matched")
CHOICES = {
    "score": SCORE_CHOICES,
    "value": VALUE_CHOICES,
    "output": OUTPUT_CHOICES,
    "position": POSITIONS,
    "merged_start": MERGED_STARTS,
}
"""The keys that are one of a few words."""


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
        score: How x becomes scores, one of `SCORE_CHOICES`.
        value: How x becomes values, one of `VALUE_CHOICES`.
        output: How heads become the output, one of `OUTPUT_CHOICES`.
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
        self._fill_in()
        self._check_choices()
        self._check_heads()
        self._check_slices()
        self._check_combinations()

    def _fill_in(self):
        if not self.head_dim:
            _require(
                self.d_out % self.n_heads == 0,
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

    def _check_choices(self):
        for key, table in CHOICES.items():
            value = getattr(self, key)
            _require(value in table, f"{key}='{value}' must be one of {', '.join(table)}")
        _require(0 <= self.drop_rate < 1, f"drop_rate={self.drop_rate} must be in [0, 1)")

    def _check_heads(self):
        for key in ("head_dim", "value_dim"):
            _require(getattr(self, key) >= 1, f"{key}={getattr(self, key)} must be at least 1")
        _require(
            self.n_kv_heads >= 1 and self.n_heads % self.n_kv_heads == 0,
            f"n_heads={self.n_heads} must be a multiple of n_kv_heads={self.n_kv_heads}",
        )
        odd = self.d_in if self.score == "merged" else self.head_dim
        _require(
            self.position != "rope" or odd % 2 == 0,
            f"rope rotates pairs of coordinates, and the width {odd} is odd: use an even one",
        )

    def _check_slices(self):
        """Slices of x must be as wide as a head, and as many as the heads that read them."""
        readers = {
            "score=no_query": (self.score == "no_query", self.n_heads, self.head_dim),
            "score=no_key": (self.score == "no_key", self.n_kv_heads, self.head_dim),
            "value=identity": (self.value == "identity", self.n_kv_heads, self.value_dim),
        }
        for choice, (chosen, heads, width) in readers.items():
            _require(
                not chosen or heads * width == self.d_in,
                f"{choice} gives each head a slice of x, so {heads} heads of {width} must "
                f"make up emb_dim={self.d_in}: change n_heads, n_kv_heads or head_dim",
            )
        _require(
            self.output != "none" or self.n_heads * self.value_dim == self.d_out,
            f"output=none concatenates {self.n_heads} heads of {self.value_dim} to "
            f"{self.n_heads * self.value_dim}, which must be {self.d_out}: keep out_proj or "
            "change head_dim",
        )
        self._check_shrunk()

    def _check_shrunk(self):
        widths = {"score": self.head_dim, "value": self.value_dim}
        for key, width in widths.items():
            _require(
                getattr(self, key) != "shrunk" or width < self.d_in,
                f"{key}=shrunk passes {width} coordinates of x on as they are, which must be fewer "
                f"than emb_dim={self.d_in}: use more heads",
            )

    def _check_combinations(self):
        _require(
            self.score != "shared" or self.n_kv_heads == self.n_heads,
            f"score=shared uses the queries as keys, so n_kv_heads={self.n_kv_heads} must be "
            f"n_heads={self.n_heads}",
        )
        _require(
            self.value not in ("key", "from_key") or self.score not in ("merged", "collaborative"),
            f"value={self.value} needs a key per head, and score={self.score} has one for all: "
            "use score=separate, or output=merged for values of full width",
        )
        _require(
            self.value != "key" or self.value_dim == self.head_dim,
            f"value=key makes values as wide as keys, so value_dim={self.value_dim} must be "
            f"head_dim={self.head_dim}",
        )
        _require(
            self.output != "merged" or (self.value, self.n_kv_heads) == ("linear", self.n_heads),
            f"output=merged trains W_value and out_proj as one matrix per head: it needs "
            f"value=linear (it is '{self.value}') and as many value heads as heads "
            f"({self.n_kv_heads} of {self.n_heads})",
        )


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A choice for each of the three maps of attention, and its formula in the field's letters."""

    name: str
    score: str = "separate"
    value: str = "linear"
    output: str = "linear"
    formula: str
    summary: str

    @property
    def maps(self) -> dict[str, str]:
        """The three choices as configuration keys."""
        return {"score": self.score, "value": self.value, "output": self.output}


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
