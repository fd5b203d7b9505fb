"""The named variants: which choice each one makes for the maps of attention.

Each row stands after its functions, in `maps` or `forms`. The command line, the README's table, the
documentation and the parametrised tests read them.
"""

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any, TypeVar

from mlx_attn.attention.choices import KINDS, MAPS, Choice
from mlx_attn.errors import ConfigError, find_row

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


Row = TypeVar("Row")


class Table(MutableMapping[str, Row]):
    """Choices of a map, or variants, by name: the package's are imported when one is asked for."""

    def __init__(self, rows: Mapping[str, Row]):
        self.rows = dict(rows)

    def _all(self) -> dict[str, Row]:
        import_forms()
        return self.rows

    def __getitem__(self, name: str) -> Row:
        return self._all()[name]

    def __setitem__(self, name: str, row: Row) -> None:
        self.rows[name] = row

    def __delitem__(self, name: str) -> None:
        del self.rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


def import_forms() -> None:
    """Import the package's choices and the field's variants, which register themselves."""
    # By name and late: they import this module, and MLX, which `--help` does without.
    import_module("mlx_attn.attention.forms")


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
        own = f"{str(error).removesuffix('?')}; one of your own needs its file:"
        raise ConfigError(f"{own} --plugin FILE", f"{own} plugins='FILE'") from error


def register(entry: Choice | Variant) -> None:
    """Add a choice of a map, a position in the heads, or a named variant.

    Raises:
        ConfigError: The name is taken.
    """
    table: dict[str, Any] = (VARIANTS if isinstance(entry, Variant) else CHOICES[entry.map]).rows
    # An alias is a name, too.
    names = {entry.name, getattr(entry, "alias", "")} - {""}
    taken = {*table} | {getattr(row, "alias", "") for row in table.values()}
    if names & taken:
        name = min(names & taken)
        raise ConfigError(f"'{name}' is registered already: choose another name")
    table[entry.name] = entry
    if isinstance(entry, Variant):
        by_group = sorted(table.values(), key=lambda row: GROUPS.index(row.group))
        VARIANTS.rows = {row.name: row for row in by_group}


def choice(map_name: str, name: str, formula: str, **facts: Any) -> Callable[..., Any]:
    """Register the decorated function as a choice of a map, or as a position in the heads.

    A `same_as=` is taken, too, and nothing reads it.

    Raises:
        ConfigError: There is no such map, its choices have no such fact, or the name is taken.
    """
    if map_name not in KINDS:
        raise ConfigError(f"map='{map_name}' must be one of {', '.join(KINDS)}")
    kind = KINDS[map_name]
    facts.pop("same_as", None)
    known = [fact.name for fact in fields(kind) if fact.name not in ("name", "formula", "apply")]
    if unknown := [f"{fact}=" for fact in facts if fact not in known]:
        own = ", ".join(f"{fact}=" for fact in known)
        raise ConfigError(
            f"{map_name}={name}: a choice of this map has no {' and no '.join(unknown)}: "
            f"it may have {own}"
        )

    def register_it(apply: Callable[..., Any]) -> Callable[..., Any]:
        register(kind(name=name, formula=formula, apply=apply, **facts))
        return apply

    return register_it


def row(name: str, summary: str, formula: str = "", group: str = PAPERS, **settings: Any) -> None:
    """Register a variant of the package; without a formula it has the formulas of its choices."""
    chosen = (CHOICES[key][settings[key]] for key in MAPS if key in settings)
    formula = formula or ", ".join(choice.formula for choice in chosen)
    register(Variant(name=name, formula=formula, summary=summary, group=group, **settings))
