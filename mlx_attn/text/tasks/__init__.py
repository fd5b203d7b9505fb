"""Probing tasks: small problems whose least possible loss is known, each made to ask one question.

`TASKS` is the table: what each task asks, which forms of attention it is predicted to tell apart,
and a recipe that solves it. `draw` makes documents of it, all of the same length, with the floor of
every symbol. A document is what a context window holds: no window needs anything outside of it.
"""

from typing import TYPE_CHECKING

from mlx_attn.lazy import lazily
from mlx_attn.text.tasks.table import TASKS, Task

if TYPE_CHECKING:
    from mlx_attn.text.tasks.documents import ABILITIES, Documents
    from mlx_attn.text.tasks.drawing import draw

__all__ = ["ABILITIES", "TASKS", "Documents", "Task", "draw"]

__getattr__ = lazily(
    __name__, {"ABILITIES": "documents", "Documents": "documents", "draw": "drawing"}
)
