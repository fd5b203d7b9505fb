"""Which trainings one process does: each its own, or those of one form together, as replicas."""

import json
from collections.abc import Callable, Sequence

from mlx_attn.lab.compare.cell import Cell
from mlx_attn.training.replicas import VARIED

Divide = Callable[[Sequence[Cell]], list[list[Cell]]]
"""Divides trainings into those that one process does."""

MOST = 8
"""Trainings that are done together: what is lost by an interruption, and held in memory."""


def apart(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Every training in a process of its own."""
    return [[cell] for cell in cells]


def of_one_form(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Those that differ in seeds and learning rates alone together, `MOST` at a time.

    With dropout every one is alone: replicas would share one stream of random numbers.
    """
    forms: dict[str, list[Cell]] = {}
    for cell in cells:
        forms.setdefault(_form(cell), []).append(cell)
    return [form[i : i + MOST] for form in forms.values() for i in range(0, len(form), MOST)]


def _form(cell: Cell) -> str:
    if cell.settings.get("drop_rate"):
        return cell.digest
    shared = {key: value for key, value in cell.settings.items() if key not in VARIED}
    return json.dumps([shared, cell.text], sort_keys=True)
