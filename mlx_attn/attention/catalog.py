"""The named variants: which choice each one makes for the maps of attention.

The book's rows are here, the first of them the standard form; rows of the field's forms are beside
their functions, in `forms`. The command line's choices, the README's table, the documentation and
the parametrised tests all read them.
"""

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any

from mlx_attn.attention.choices import CHOICES, MAPS, Choice, import_forms, positions
from mlx_attn.errors import ConfigError, find_row

FORMS, PAPERS, REFERENCES, YOURS = GROUPS = ("forms", "papers", "reference arms", "yours")
"""The groups of variants: of the book's matrices, from papers, what others are measured by, own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A choice for each map of attention, and its formula in the field's letters.

    `window`, `global_every` and `n_kv_heads` are sizes to begin with, `position`, `qk_norm`,
    `short_conv` and `kv_sharing` its further needs; empty, they stay as they are. `source` is a
    paper if no choice names it, `alias` another name of the same function.
    """

    name: str
    score: str = "separate"
    value: str = "linear"
    output: str = "linear"
    logits: str = "none"
    mixing: str = "softmax"
    window: int = 0
    global_every: int = 0
    position: str = ""
    qk_norm: bool = False
    short_conv: str = ""
    n_kv_heads: int = 0
    kv_sharing: int = 0
    formula: str
    summary: str
    source: str = ""
    alias: str = ""
    group: str = YOURS

    @property
    def maps(self) -> dict[str, str]:
        """Its choices as configuration keys."""
        return {name: getattr(self, name) for name in MAPS}

    @property
    def settings(self) -> dict[str, Any]:
        """All that it sets: its choices, the windows of its layers, and what else it needs."""
        windows = {"window": self.window, "global_every": self.global_every}
        return {**self.maps, **(windows if self.window else {}), **self.needs}

    @property
    def needs(self) -> dict[str, Any]:
        """Settings other than maps and windows."""
        return {key: value for key in NEEDS if (value := getattr(self, key))}


NEEDS = ("position", "qk_norm", "short_conv", "n_kv_heads", "kv_sharing")
"""Settings of a variant besides its maps and windows."""


class Variants(MutableMapping[str, Variant]):
    """Variants by name, in the order of their groups.

    The book's are there at once, those of `forms` once a name is missing or all are asked for.
    """

    def __init__(self):
        self.rows: dict[str, Variant] = {}

    def __getitem__(self, name: str) -> Variant:
        if name not in self.rows:
            import_forms()
        return self.rows[name]

    def __setitem__(self, name: str, row: Variant) -> None:
        self.rows[name] = row

    def __delitem__(self, name: str) -> None:
        del self.rows[name]

    def __iter__(self) -> Iterator[str]:
        import_forms()
        return iter(sorted(self.rows, key=lambda name: GROUPS.index(self.rows[name].group)))

    def __len__(self) -> int:
        import_forms()
        return len(self.rows)


VARIANTS = Variants()
"""Every named variant."""


def find_variant(name: str) -> Variant:
    """Return the variant of that name or alias; hyphens and underscores are the same.

    Raises:
        ConfigError: No variant has that name; the message suggests the nearest.
    """
    aliases = {row.alias: row for row in VARIANTS.values() if row.alias}
    try:
        return find_row({**VARIANTS, **aliases}, name, "variant")
    except ConfigError as error:
        own = f"{str(error).removesuffix('?')}; one of your own needs its file:"
        raise ConfigError(f"{own} --plugin FILE", f"{own} plugins='FILE'") from error


def register(entry: Choice | Variant) -> None:
    """Add a choice of a map, a position in the heads, or a named variant.

    Raises:
        ConfigError: The name is taken.
    """
    table: dict[str, Any] = VARIANTS.rows if isinstance(entry, Variant) else CHOICES[entry.map]
    taken = {*(positions() if table is CHOICES["position"] else table)}
    names = {entry.name}
    if isinstance(entry, Variant):  # an alias is a name, too
        taken |= {row.alias for row in VARIANTS.rows.values()} - {""}
        names |= {entry.alias} - {""}
    if taken & names:
        name = min(taken & names)
        raise ConfigError(f"'{name}' is registered already: choose another name")
    table[entry.name] = entry


def row(name: str, summary: str, formula: str = "", group: str = PAPERS, **settings: Any) -> None:
    """Register a variant of the package; without a formula it has those of its choices."""
    chosen = (CHOICES[key][settings[key]] for key in MAPS if key in settings)
    formula = formula or ", ".join(choice.formula for choice in chosen)
    register(Variant(name=name, formula=formula, summary=summary, group=group, **settings))


# The rows of the book's forms.

row(
    "standard",
    "the book's multi-head attention",
    "q = x W_query, k = x W_key, v = x W_value, y = concat(heads) out_proj",
    group=FORMS,
)
row(
    "no-out-proj",
    "the heads' outputs are concatenated and used as they are",
    "y = g concat(heads)",
    group=FORMS,
    output="none",
)
row(
    "merged",
    "W_query_h W_key_h^T is trained as one full-rank matrix S_h",
    "q_h = x S_h, k = x",
    group=FORMS,
    score="merged",
)
row(
    "merged-no-out-proj",
    "merged scores and no output projection",
    "q_h = x S_h, k = x, y = g concat(heads)",
    group=FORMS,
    score="merged",
    output="none",
)
row(
    "no-query",
    "the query is the head's own slice of x",
    "q_h = x[slice h], k = x W_key",
    group=FORMS,
    score="no_query",
)
row(
    "no-key",
    "the key is the head's own slice of x",
    "q = x W_query, k_h = x[slice h]",
    group=FORMS,
    score="no_key",
)
row(
    "shared-query-key",
    "one matrix for query and key: the scores are symmetric",
    "q = k = x W_query",
    group=FORMS,
    score="shared",
)
row(
    "no-value",
    "the value is the head's own slice of x",
    "v_h = x[slice h]",
    group=FORMS,
    value="identity",
)
row(
    "no-value-no-out-proj",
    "attention only moves slices of x to other tokens",
    "v_h = x[slice h], y = g concat(heads)",
    group=FORMS,
    value="identity",
    output="none",
)
row(
    "key-only",
    "only W_key and out_proj are trained: queries and values are slices of x",
    "q_h = x[slice h], k = x W_key, v_h = x[slice h]",
    group=FORMS,
    score="no_query",
    value="identity",
)
row(
    "key-as-value",
    "the key is used as the value: half the cache; `keyless` is another name for it",
    "v = k = x W_key",
    group=FORMS,
    value="key",
    alias="keyless",
)
row(
    "merged-output",
    "W_value_h out_proj_h is trained as one C x C matrix per head",
    "y = sum_h softmax_h x VO_h",
    group=FORMS,
    output="merged",
)
row(
    "merged-both",
    "both products are trained as whole matrices",
    "q_h = x S_h, k = x, y = sum_h softmax_h x VO_h",
    group=FORMS,
    score="merged",
    output="merged",
)
