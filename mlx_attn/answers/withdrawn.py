"""Words that were withdrawn: the numbers stay as computed, and the word no longer stands.

A study's folder lists them in `withdrawn.toml`, beside its registration.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from mlx_attn.answers.findings import WITHDRAWN, Finding
from mlx_attn.records import as_record, read_toml

_FILE = "withdrawn.toml"


class Withdrawal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An arm whose words against the standard form are withdrawn, where, and why."""

    arm: str
    worlds: tuple[str, ...]
    reason: str


def withdrawals(folder: Path) -> tuple[Withdrawal, ...]:
    """Return the words that were withdrawn of the study in a folder.

    Raises:
        RunError: The file that lists them is damaged.
    """
    file = folder / _FILE
    if not file.exists():
        return ()
    return as_record(read_toml(file).get("words", []), tuple[Withdrawal, ...], str(file))


def withdraw(found: Sequence[Finding], listed: Sequence[Withdrawal]) -> list[Finding]:
    """Return the findings of a study, those with a withdrawn word answered so."""
    withdrawn = {(one.arm, world) for one in listed for world in one.worlds}
    return [
        replace(f, answer=WITHDRAWN) if f.verdict and (f.contrast.arm, f.world) in withdrawn else f
        for f in found
    ]
