"""All state that a training step changes, as one flat mapping to save.

Weights are named "model.*", and optimizer states "optimizer.N.*", where N is the optimizer's
number. Random numbers are not included, because the seed and the step determine them.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from mlx.utils import tree_unflatten

from mlx_attn.arrays import Arrays, check_weights, load_arrays, named_arrays, save_arrays
from mlx_attn.errors import RunError
from mlx_attn.model.gpt import GPT
from mlx_attn.records import Count, Object, Seconds, as_record, check_agrees, parse_record
from mlx_attn.training.evaluation import Evaluation, evaluation_record
from mlx_attn.training.optimizers import GroupedOptimizer


def get_state(model: GPT, optimizer: GroupedOptimizer) -> Arrays:
    """Return the current weights and optimizer states."""
    return named_arrays({"model": model.parameters(), "optimizer": optimizer.state})


def set_state(arrays: Arrays, model: GPT, optimizer: GroupedOptimizer) -> None:
    """Copy the arrays of `get_state` into a training, within its own containers."""
    tree: Any = tree_unflatten(list(arrays.items()))
    model.update(tree["model"])
    # Update the dictionaries in place: compiled steps hold references to them.
    for state, values in zip(optimizer.state, tree["optimizer"], strict=True):
        state.update(values)
    optimizer.read()


@dataclass(slots=True)
class Progress:
    """Steps, seconds and losses of a training so far."""

    step: Count = 0  # steps done
    seconds: Seconds = 0.0  # of training so far, validations included
    timed_steps: Count = 0  # those whose time is known: all but the first after each start
    training_seconds: Seconds = 0.0  # what these took, without validations
    evaluated_step: Count = 0  # of the latest validation
    tracked_step: int = -1  # of the latest record of the heads
    best: Evaluation | None = None  # the lowest loss so far; None before the first validation
    peak_memory: Count = 0  # bytes
    losses: list[float] = field(default_factory=list)  # of steps since the last report of one
    grad_norm: float = 0.0  # of the latest of these
    first_loss: float = 0.0  # of the first step

    @property
    def latest(self) -> tuple[int, int, int]:
        """Return the steps of the latest weights, validation, and record of the heads."""
        return self.step, self.evaluated_step, self.tracked_step

    @property
    def unreported(self) -> set[str]:
        """Return the events that are still missing for the current step."""
        done = {"eval": self.evaluated_step, "track": self.tracked_step}
        missing = {event for event, step in done.items() if step != self.step}
        return missing | ({"step"} if self.losses else set())

    def record(self, evaluation: Evaluation) -> bool:
        """Record a validation of this step, and return whether it is the best so far."""
        self.evaluated_step = self.step
        if self.best and evaluation.val_loss >= self.best.val_loss:
            return False
        self.best = evaluation
        return True

    def as_record(self) -> dict[str, Any]:
        """Return all fields as JSON; the best evaluation's keys begin with "best_"."""
        record = asdict(self)
        del record["best"]
        return record | {_BEST[key]: v for key, v in evaluation_record(self.best).items()}

    @classmethod
    def from_record(cls, record: Mapping[str, Any], place: str = "a checkpoint") -> "Progress":
        """Read the result of `as_record`, ignoring keys that this version does not know."""
        # Without a validation all of these are None in the file.
        best = {key: record[name] for key, name in _BEST.items() if record.get(name) is not None}
        return as_record({**record, "best": best if "val_loss" in best else None}, cls, place)


_BEST = {key.name: "best_" + key.name.removeprefix("val_") for key in fields(Evaluation)}
"""Keys of an evaluation, and their names in a checkpoint."""


def save_checkpoint(
    path: Path, model: GPT, optimizer: GroupedOptimizer, progress: Progress, recipe: Object
) -> None:
    """Write everything that resuming needs, and the recipe that belongs to it."""
    facts = {"progress": json.dumps(progress.as_record()), "recipe": json.dumps(recipe)}
    save_arrays(path, get_state(model, optimizer), facts)


def load_checkpoint(
    path: Path, model: GPT, optimizer: GroupedOptimizer, recipe: Object
) -> Progress:
    """Restore model and optimizer in place, and return the progress.

    Call this before the first step: the compiled step refers to these containers.

    Raises:
        RunError: The file is missing, damaged, or has another configuration or recipe.
    """
    if not path.exists():
        raise RunError(f"{path}: no such file: there is no checkpoint to resume from")
    arrays, facts = load_arrays(path)
    if "progress" not in facts:
        raise RunError(f"{path}: only weights, no checkpoint: there is nothing to resume from")
    progress = parse_record(facts["progress"], Object, f"{path}, progress")
    weights = {n.removeprefix("model."): a for n, a in arrays.items() if n.startswith("model.")}
    check_weights(path, model, weights)
    now = get_state(model, optimizer)
    # Names, shapes and types identify the optimizer: Muon's stacks differ from AdamW's vectors.
    saved, own = ({n: (a.shape, a.dtype) for n, a in each.items()} for each in (arrays, now))
    if saved != own:
        raise RunError(f"{path}: saved by another optimizer; resume with the run's own settings")
    check_agrees(facts.get("recipe", "{}"), recipe, str(path))
    # Everything is checked before the first array changes.
    restored = Progress.from_record(progress, f"{path}, progress")
    set_state(arrays, model, optimizer)
    return restored
