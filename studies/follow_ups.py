"""Read the follow-up studies, completed from the first study's worlds and arms."""

from functools import cache
from typing import Any

import msgspec

from mlx_attn.errors import find_row
from mlx_attn.records import package_table
from studies import FOLLOW_UPS
from studies.study import STANDARD, Study, study_from, the_study


@cache
def follow_up(name: str) -> Study:
    """Return the named follow-up; raise an error with the nearest name if it is unknown."""
    find_row(dict.fromkeys(FOLLOW_UPS), name, "study")
    return study_from(_with_the_first(package_table("studies", name), the_study()))


def _with_the_first(tables: dict[str, Any], first: Study) -> dict[str, Any]:
    """Return a follow-up's tables, completed from earlier studies where they are `like` them."""
    earlier = msgspec.to_builtins(first)
    worlds, arms = {}, {**earlier["arms"]}
    for name, row in tables["worlds"].items():
        base = earlier["worlds"][row.pop("like")] if "like" in row else {"settings": {}}
        worlds[name] = {**base, **row, "settings": base["settings"] | row.get("settings", {})}
    for row in tables["questions"].values():
        if "like" in row:
            arms |= _ask_again(row, msgspec.to_builtins(follow_up(row.pop("like"))))
    asked = [c for question in tables["questions"].values() for c in question["contrasts"]]
    named = {arm for c in asked for arm in (c["arm"], c["reference"], c.get("control", STANDARD))}
    arms = {name: arm for name, arm in arms.items() if name in named}
    return {**tables, "worlds": worlds, "arms": arms | tables.get("arms", {})}


def _ask_again(row: dict[str, Any], study: dict[str, Any]) -> dict[str, Any]:
    """Add a study's contrasts to a question, except for arms that it asks about; return the arms.

    The worlds of that study are not those of this one, so every world asks an added contrast.
    """
    own = {contrast["arm"] for contrast in row["contrasts"]}
    for question in study["questions"].values():
        for contrast in question["contrasts"]:
            if contrast["arm"] not in own:
                row["contrasts"].append({k: v for k, v in contrast.items() if k != "worlds"})
    return study["arms"]
