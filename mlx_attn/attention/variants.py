"""The table of named variants: which choice each one makes for the three maps.

This is the only list. The command line's choices, the README's table, the documentation and the
parametrised tests all read it. A variant is a value: three words that `AttentionConfig` takes.
"""

from dataclasses import dataclass

from mlx_attn.errors import ConfigError, nearest


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
    wanted = name.strip().lower().replace("_", "-")
    if wanted in VARIANTS:
        return VARIANTS[wanted]
    raise ConfigError(f"unknown variant '{name}'{nearest(wanted, VARIANTS)}")
