"""Results of algebra and counting, as they were measured on one trained model.

Each was checked on the model after a short training of the preset nano: `identities.toml` states
it, and `identities.json` has what was measured.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mlx_attn.records import package_table, read_record

_STEPS = 60  # of the training in which two forms part


def _distance(step: int) -> str:
    """Return the name of the distance of S from the product after a step."""
    return f"distance of S, of its size, after {step}"


def _attention(step: int) -> str:
    """Return the name of the share of attention on different tokens after a step."""
    return f"attention given to other tokens, after {step}"


def parting_curves(numbers: Mapping[str, float]) -> dict[str, dict[int, float]]:
    """Return the distances of S and attention by step, from `merged-learns-another-s`."""
    names = {"S": _distance, "attention": _attention}
    steps = range(_STEPS + 1)
    return {
        what: {step: numbers[name(step)] for step in steps if name(step) in numbers}
        for what, name in names.items()
    }


FORMS = ("separate", "merged")


def _cut(form: str, rank: int) -> str:
    """Return the name of a form's loss with every S_h cut to its largest singular values."""
    return f"loss, {form}, S cut to rank {rank}"


def truncation_curves(numbers: Mapping[str, float]) -> dict[str, dict[int, float]]:
    """Return the loss in nats by form and rank of S_h, from `merged-has-a-flatter-spectrum`."""
    ranks = [2**power for power in range(16)]
    return {
        form: {rank: numbers[_cut(form, rank)] for rank in ranks if _cut(form, rank) in numbers}
        for form in FORMS
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A statement of algebra or counting, with what was done to check it."""

    statement: str
    source: str
    check: str


_TABLE = package_table("studies", "identities")

IDENTITIES = {name: Identity(**row) for name, row in _TABLE.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The measurements of a check by name, and if they confirm the statement."""

    holds: bool
    numbers: Mapping[str, float] = field(default_factory=dict)


CHECKED = "identities.json"


def read_checked(folder: Path) -> dict[str, Checked]:
    """Return the saved measurements of the checks, or an empty mapping."""
    file = folder / CHECKED
    return read_record(file, dict[str, Checked]) if file.exists() else {}
