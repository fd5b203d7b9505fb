"""How the arms of a comparison are told apart in every figure: colour, marker and dashes."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from mlx_attn.lab.compare.result import Comparison
from mlx_attn.show.figures import COLOURS
from mlx_attn.show.report.words import shown

_MARKERS = "osD^vPX*"
_DASHES = ("-", "--", "-.", ":")


@dataclass(frozen=True, slots=True)
class Mark:
    """How an arm looks, which colour alone never says."""

    label: str
    colour: str
    marker: str
    dashes: str

    def line(self) -> dict[str, Any]:
        """What matplotlib draws a curve with."""
        return {
            "color": self.colour,
            "linestyle": self.dashes,
            "linewidth": 1.4,
            "label": self.label,
        }

    def point(self) -> dict[str, Any]:
        """What matplotlib draws a single value with."""
        return {
            "color": self.colour,
            "marker": self.marker,
            "linestyle": "none",
            "markersize": 5,
            "label": self.label,
        }


Marks = dict[str, Mark]


def marks_of(comparison: Comparison) -> Marks:
    """A mark for every arm, the same under all budgets."""
    names = [arm.arm for budget in comparison.budgets for arm in budget.arms]
    return marks([*names, *(tuning.arm for tuning in comparison.tunings)])


def marks(names: Iterable[str]) -> Marks:
    """A mark for every name, in order."""
    return {name: _mark(place, name) for place, name in enumerate(dict.fromkeys(names))}


def _mark(place: int, name: str) -> Mark:
    colour = COLOURS[(place + 1) % len(COLOURS)]
    marker = _MARKERS[place % len(_MARKERS)]
    return Mark(shown(name), colour, marker, _DASHES[place % len(_DASHES)])
