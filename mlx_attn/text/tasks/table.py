"""The table of tasks: what each asks, what it is predicted to tell apart, and how to train it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_RECIPE: dict[str, Any] = {
    "n_layers": 2,
    "n_heads": 4,
    "emb_dim": 64,
    "norm": "rmsnorm",
    "activation": "relu2",
    "bias": False,
    "start": "zero",
    "position": "learned",
    "optimizer": "adamw",
    "lr": 3e-3,
    "schedule": "trapezoid",
    "warmup": 50,
    "batch_size": 32,
    "steps": 1000,
    "eval_every": 250,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A probing task.

    Attributes:
        name: What `--data` calls it.
        summary: What a document is, in one line.
        separates: Which forms of attention it is predicted to tell apart, in one sentence.
        sizes: Arguments of its generator.
        length: Symbols of a document.
        recipe: Settings that solve it with 2 layers of width 64.
    """

    name: str
    summary: str
    separates: str
    sizes: Mapping[str, int]
    length: int
    recipe: Mapping[str, Any] = field(default_factory=lambda: _RECIPE)

    @property
    def fit(self) -> dict[str, Any]:
        """What every training on it needs: its own tokenizer, and room for one document."""
        return {"data": self.name, "tokenizer": "symbols", "context_length": self.length + 1}

    @property
    def settings(self) -> dict[str, Any]:
        """The settings to train it with where nothing else is said."""
        return {**self.recipe, **self.fit}


_TASKS = (
    Task(
        name="copy",
        summary="a random string, then the same string again",
        separates="one layer from two: looking up what followed the last time needs two",
        sizes={"vocabulary": 32, "length": 64},
        length=64,
    ),
)

TASKS: dict[str, Task] = {task.name: task for task in _TASKS}
