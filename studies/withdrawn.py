"""Words that were taken back: the numbers stay as computed, and the word no longer stands."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import msgspec

from mlx_attn.answers.findings import WITHDRAWN, Finding
from mlx_attn.records import as_record, package_table

FIRST = "first"
"""How the table names the package's own study."""


class Withdrawal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An arm whose words against the standard form are taken back, where, and why."""

    arm: str
    worlds: tuple[str, ...]
    reason: str


@cache
def withdrawals() -> dict[str, tuple[Withdrawal, ...]]:
    """Return the words that were taken back, by study."""
    table = package_table("studies", "withdrawn")
    return as_record(table, dict[str, tuple[Withdrawal, ...]], "studies/withdrawn.toml")


def take_back(found: Sequence[Finding], study: str) -> list[Finding]:
    """Return the findings of a study, those with a withdrawn word answered so."""
    taken = {(one.arm, world) for one in withdrawals().get(study, ()) for world in one.worlds}
    return [
        replace(f, answer=WITHDRAWN) if f.verdict and (f.contrast.arm, f.world) in taken else f
        for f in found
    ]
