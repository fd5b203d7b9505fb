"""Follow-up studies of the repository, and the code that writes docs/answers.md.

Each follow-up study has its own file, registration and correction, so it changes no verdict of the
first study. The wheel does not contain this folder; users' own texts do not need it.
"""

from functools import cache
from typing import Any

import msgspec

from mlx_attn.answers.study import STANDARD, Study, study_from, the_study
from mlx_attn.errors import find_row
from mlx_attn.records import package_table

FOLLOW_UPS = (
    "replication",
    "widths",
    "chapter5",
    "sources",
    "recall",
    "starts",
    "rank",
    "chapter5-gpt2",
    "horizon",
    "alternatives",
    "confirmed",
    "recall-time",
    "abilities",
    "state-tracking",
    "recall-gaps",
    "delta-rules",
    "own-rates",
    "gpt2-124m",
)
"""Studies by name, in the order of the page; they may reuse the first study's worlds and arms."""


CONFIRMS = {"replication": "", "own-rates": "", "confirmed": "alternatives"}
"""Confirming studies, with the study that each confirms; "" is the first study.

A study explores: it asks many contrasts with few seeds. The contrasts that matter are then asked
again by a confirming study, with seeds that no earlier training had. Only its words are quoted.
"""


@cache
def follow_up(name: str) -> Study:
    """Return the named follow-up; raise an error with the nearest name if it is unknown."""
    find_row(dict.fromkeys(FOLLOW_UPS), name, "study")
    return study_from(_with_the_first(package_table("studies", name), the_study()))


def _with_the_first(tables: dict[str, Any], first: Study) -> dict[str, Any]:
    """Return a follow-up's tables, completed from the first study's arms and `like` worlds."""
    known = msgspec.to_builtins(first)
    worlds = {}
    for name, row in tables["worlds"].items():
        base = known["worlds"][row.pop("like")] if "like" in row else {"settings": {}}
        worlds[name] = {**base, **row, "settings": base["settings"] | row.get("settings", {})}
    asked = [c for question in tables["questions"].values() for c in question["contrasts"]]
    named = {arm for c in asked for arm in (c["arm"], c["reference"], c.get("control", STANDARD))}
    arms = {name: arm for name, arm in known["arms"].items() if name in named}
    return {**tables, "worlds": worlds, "arms": arms | tables.get("arms", {})}
