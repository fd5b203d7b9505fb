"""Read the follow-up studies, completed from the first study's worlds and arms."""

from functools import cache
from typing import Any

import msgspec

from mlx_attn.errors import find_row
from mlx_attn.records import package_table
from mlx_attn_studies import FOLLOW_UPS
from mlx_attn_studies.study import STANDARD, Study, study_from, the_study


@cache
def follow_up(name: str) -> Study:
    """Return the named follow-up; raise an error with the nearest name if it is unknown."""
    find_row(dict.fromkeys(FOLLOW_UPS), name, "study")
    return study_from(_with_the_first(package_table("mlx_attn_studies", name), the_study()))


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
