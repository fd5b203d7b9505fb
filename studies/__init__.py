"""What the repository asks besides the package's study, and what writes docs/answers.md.

Each follow-up study has a file, a registration and a correction of its own, so that it changes no
word of the first. No wheel holds this folder: a text of one's own needs none of it.
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
)
"""By name, in the order of the page; their worlds and arms may be those of the first study."""


@cache
def follow_up(name: str) -> Study:
    """Return the named follow-up; an unknown one is refused with the nearest."""
    find_row(dict.fromkeys(FOLLOW_UPS), name, "study")
    return study_from(_with_the_first(package_table("studies", name), the_study()))


def _with_the_first(tables: dict[str, Any], first: Study) -> dict[str, Any]:
    """Return its tables with the worlds that are `like` one of the first study, and its arms."""
    known = msgspec.to_builtins(first)
    worlds = {}
    for name, row in tables["worlds"].items():
        base = known["worlds"][row.pop("like")] if "like" in row else {"settings": {}}
        worlds[name] = {**base, **row, "settings": base["settings"] | row.get("settings", {})}
    asked = [c for question in tables["questions"].values() for c in question["contrasts"]]
    named = {arm for c in asked for arm in (c["arm"], c["reference"], c.get("control", STANDARD))}
    arms = {name: arm for name, arm in known["arms"].items() if name in named}
    return {**tables, "worlds": worlds, "arms": arms | tables.get("arms", {})}
