"""What a choice declares, the named variants, and the tables of both.

A choice has a formula, weights, a function, and the facts of its kind. The kinds are the three maps
of attention, the two hooks between score and value, and positions in the heads. A variant makes a
choice for each map. `maps` and `forms` register the package's, each after its functions, and a
user's file does the same.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from importlib import import_module
from inspect import currentframe, unwrap
from traceback import walk_stack
from typing import Any, ClassVar

from mlx_attn.errors import ConfigError, Row, find_row
from mlx_attn.keys import check_word, plain

OfConfig = Callable[[Any], Any]
"""A function of an `AttentionConfig`."""
OfLayer = Callable[..., Any]
"""A function of an `Attention`, whose attributes hold the weights by name, and of arrays."""

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
    """The facts of every kind of choice."""

    map: ClassVar[str]

    name: str  # the word in a configuration
    formula: str  # in the field's letters
    source: str = ""  # the paper, or the section of the book
    apply: OfLayer  # computes the map
    # Makes each trained part by name: a Linear layer, an array, or None if a configuration needs
    # none.
    weights: Mapping[str, OfConfig] = field(default_factory=dict)
    # Starting weights by name, if they are not drawn like other Linear layers. Of these, "out_proj"
    # ends a branch.
    init: Callable[[Any, Callable[..., Any]], Mapping[str, Any]] | None = None
    # The weights that multiply x, if nothing else reads x: they can absorb the gain of the norm
    # before. None: x is read in another way.
    input_weights: tuple[str, ...] | None = None
    # Per token at full context, in addition to its matrices, the scores and the weighted sum.
    multiply_adds: Callable[[Any], int] = lambda config: 0
    # Why a configuration cannot use it, and the way out; empty if it can.
    refuses: Callable[[Any], str] = lambda config: ""

    @property
    def foreign_functions(self) -> list[Callable[..., Any]]:
        """Its functions that a user wrote; empty for the package's own choices."""
        facts = [getattr(self, fact.name) for fact in fields(self)]
        functions = [unwrap(fact) for fact in (*facts, *self.weights.values()) if callable(fact)]
        return [f for f in functions if not f.__module__.startswith("mlx_attn.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreMap(Choice):
    """A choice of the queries and keys: `score(layer, x) -> q, k`."""

    map = "score"

    # The number of heads of its keys, and their width.
    shape: OfConfig = lambda config: (config.n_kv_heads, config.head_dim)
    cache: str = "kv"  # of a token, "kv": key and value; "x": only the key, which is x
    affine: bool = True  # linear up to a bias, as conversions and spectra need
    queries_per_head: int = 1
    # It reads arrays of earlier layers, `score(layer, x, carry)`, and so is not affine.
    carries: bool = False

    def __post_init__(self):
        check_word("cache", self.cache, ("kv", "x"))
        object.__setattr__(self, "affine", self.affine and not self.carries)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueMap(Choice):
    """A choice of the values: `value(layer, x, k) -> v`."""

    map = "value"

    # The number of heads of its values, and their width.
    shape: OfConfig = lambda config: (config.n_kv_heads, config.value_dim)
    after: OfLayer | None = None  # the same map applied to softmax_h x, which gives the same heads
    # Of a token, "kv": key and value; "k": only the key, which this map reads; "x": only the key,
    # which is x. If score or value keep only the key, so does the layer.
    cache: str = "kv"
    affine: bool = True  # linear up to a bias
    reads_keys: bool = False  # it computes values from keys
    # It reads arrays of earlier layers, `value(layer, x, k, carry)`, and so is not affine.
    carries: bool = False

    def __post_init__(self):
        check_word("cache", self.cache, ("kv", "x", "k"))
        object.__setattr__(self, "reads_keys", self.reads_keys or self.cache == "k")
        object.__setattr__(self, "affine", self.affine and not self.carries)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputMap(Choice):
    """A choice of the output: `output(layer, heads, x) -> y`."""

    map = "output"

    affine: bool = True  # linear in the heads up to a bias
    contains_value: ValueMap | None = None  # in the place of the value map, if it computes values


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook(Choice):
    """A change of scores or weights, between score and value."""

    # A constant added to all scores of a query changes no weight, so that the key's bias cancels.
    shift_invariant: bool = False
    # Numbers of x that decoding also caches, [B, heads, T, width]; the hook receives the numbers of
    # all tokens as its last argument.
    remembers: OfLayer | None = None
    # It needs the memory of all earlier tokens even if a window hides their keys. The layer's cache
    # then holds all of them.
    remembers_all: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsHook(Hook):
    """A change of the scores before the mask: `logits(layer, s) -> s`."""

    map = "logits"

    # If it only multiplies the scores of each attention map: these factors, so that W_query can
    # absorb them.
    score_factor: OfLayer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixing(Hook):
    """A choice of the attention weights: `mixing(layer, s) -> weights`."""

    map = "mixing"

    # The weights of every query add up to 1, so that values may be computed after the weighted sum
    # and their bias is a constant.
    sums_to_one: bool = False
    reads_keys: bool = False  # it reads the queries and keys too: `mixing(layer, s, q, k)`
    # The same heads from a state of fixed size, `recurs(layer, q, k, v, memory, state) -> heads,
    # state`, without `memory` if it remembers nothing, and with None at the start of a text.
    # Decoding then caches the state, one array, and no tokens.
    recurs: OfLayer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionInHeads(Choice):
    """Positions in the heads: `position(layer, y, positions) -> y`, of queries and of keys."""

    map = "position"


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution(Choice):
    """A change of queries, keys and values: `short_conv(layer, part, y, cache) -> y`."""

    map = "short_conv"


_KINDS = ScoreMap, ValueMap, OutputMap, LogitsHook, Mixing, PositionInHeads, Convolution
KINDS: dict[str, type[Choice]] = {kind.map: kind for kind in _KINDS}


FORMS, PAPERS, REFERENCES, YOURS = GROUPS = ("forms", "papers", "reference arms", "yours")
"""Variants of the book's matrices, of papers, those that others are measured by, and a user's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A choice for each map of attention, and what else it sets."""

    name: str
    score: str = "separate"
    value: str = "linear"
    output: str = "linear"
    logits: str = "none"
    mixing: str = "softmax"
    # Further settings; 0, "" and False leave them as they are.
    window: int = 0
    global_every: int = 0
    position: str = ""
    qk_norm: bool = False
    short_conv: str = ""
    n_kv_heads: int = 0
    kv_sharing: int = 0
    formula: str  # in the field's letters
    summary: str
    source: str = ""  # a paper, if no choice names it
    alias: str = ""  # another name of the same function
    group: str = YOURS

    @property
    def maps(self) -> dict[str, str]:
        """Its choices as configuration keys."""
        return {name: getattr(self, name) for name in MAPS}

    @property
    def settings(self) -> dict[str, Any]:
        """All that it sets: its choices, the windows of its layers, and what else it needs."""
        # A window without global_every holds for all layers, whatever the preset.
        windows = {"window": self.window, "global_every": self.global_every} if self.window else {}
        needs = ("position", "qk_norm", "short_conv", "n_kv_heads", "kv_sharing")
        return self.maps | windows | {key: value for key in needs if (value := getattr(self, key))}


class Table(Mapping[str, Row]):
    """Choices of a map, or variants, by name: the package's are imported when one is asked for."""

    def __init__(self, rows: Mapping[str, Row]):
        self.rows = dict(rows)
        self.in_cells: set[str] = set()  # names that code outside all files registered

    def __getitem__(self, name: str) -> Row:
        # By name and late: they import this module, and MLX, which `--help` does without.
        import_module("mlx_attn.attention.forms")
        return self.rows[name]

    def __iter__(self) -> Iterator[str]:
        import_module("mlx_attn.attention.forms")
        return iter(self.rows)

    def __len__(self) -> int:
        return sum(1 for _ in self)


VARIANTS: Table[Variant] = Table({})
"""Every named variant, in the order of their groups."""

# The model, the mask or a kernel computes the package's positions; a user's are choices.
_NO_CHOICES = {"position": ("learned", "alibi", "rope", "none"), "short_conv": ("none",)}
CHOICES: dict[str, Table[Any]] = {
    name: Table(dict.fromkeys(_NO_CHOICES.get(name, ()))) for name in KINDS
}
"""Every choice by map and name; None for a name of `position` or `short_conv` that is none."""


def choice_of(map_name: str, name: str) -> Any:
    """Return the named choice of a map.

    Raises:
        ConfigError: No choice has that name; the message lists all names.
    """
    try:
        return CHOICES[map_name][name]
    except KeyError:
        names = ", ".join(CHOICES[map_name])
        known = f"{map_name}='{name}' must be one of {names}; your own needs its file:"
        raise ConfigError(f"{known} --plugin FILE", f"{known} plugins='FILE'") from None


def find_variant(name: str) -> Variant:
    """Return the variant of that name or alias; hyphens and underscores are the same.

    Raises:
        ConfigError: No variant has that name; the message suggests the nearest.
    """
    aliases = {row.alias: row for row in VARIANTS.values() if row.alias}
    try:
        return find_row({**VARIANTS, **aliases}, name, "variant")
    except ConfigError as error:
        hint = f"{str(error).removesuffix('?')}; one of your own needs its file:"
        raise ConfigError(f"{hint} --plugin FILE", f"{hint} plugins='FILE'") from error


def register(entry: Choice | Variant) -> None:
    """Add a choice of a map, a position in the heads, or a named variant.

    One from a notebook's cell gives way to the same cell run again, and to the file made of it.

    Raises:
        ConfigError: The name is taken.
    """
    table: Table[Any] = VARIANTS if isinstance(entry, Variant) else CHOICES[entry.map]
    # An alias is a name, too.
    names = {entry.name, getattr(entry, "alias", "")} - {""}
    taken = {*table.rows} | {getattr(row, "alias", "") for row in table.rows.values()}
    if both := names & taken - table.in_cells:
        raise ConfigError(f"'{min(both)}' is registered already: choose another name")
    table.rows[entry.name] = entry
    modules = (frame.f_globals for frame, _ in walk_stack(currentframe()))
    has_file = "__file__" in next(module for module in modules if module is not globals())
    table.in_cells = table.in_cells - names if has_file else table.in_cells | names


def choice(map_name: str, name: str, formula: str, **facts: Any) -> Callable[..., Any]:
    """Register the decorated function as a choice of a map, or as a position in the heads.

    Raises:
        ConfigError: The map or a fact of its choices is unknown, a fact is of another type, or the
            name is taken.
    """
    check_word("map", map_name, [*MAPS, "position"])
    kind = KINDS[map_name]
    known = [fact.name for fact in fields(kind) if fact.name not in ("name", "formula", "apply")]
    if unknown := [fact for fact in facts if fact not in known]:
        has_no = f"a choice of this map has no {' and no '.join(unknown)}"
        raise ConfigError(f"{map_name}={name}: {has_no}: it may have {', '.join(known)}")
    for fact in fields(kind):
        if fact.name in facts and (wrong := _wrong_type(str(fact.type), facts[fact.name])):
            raise ConfigError(f"{map_name}={name}: {fact.name}= must be {wrong}")

    def register_it(apply: Callable[..., Any]) -> Callable[..., Any]:
        register(kind(name=name, formula=formula, apply=apply, **facts))
        return apply

    return register_it


def _wrong_type(declared: str, value: Any) -> str:
    """Return the type that a fact must have; empty if it has."""
    if value is None and declared.endswith("None"):
        return ""
    if "Mapping" in declared.partition("[")[0]:
        made = [*value.values()] if isinstance(value, Mapping) else [value]
        return "" if all(map(callable, made)) else "functions by name"
    if "Callable" in declared:
        return "" if callable(value) else "a function"
    if "bool" in declared:
        return "" if isinstance(plain(value), bool) else "True or False"
    return "a tuple of names" if "tuple" in declared and isinstance(value, str) else ""


def row(name: str, summary: str, formula: str = "", group: str = PAPERS, **settings: Any) -> None:
    """Register a variant of the package; without a formula it has the formulas of its choices."""
    chosen = (CHOICES[key][settings[key]] for key in MAPS if key in settings)
    formula = formula or ", ".join(choice.formula for choice in chosen)
    register(Variant(name=name, formula=formula, summary=summary, group=group, **settings))
