"""All state that a training step changes, as one flat mapping to save.

Weights are named "model.*", and optimizer states "optimizer.N.*", where N is the optimizer's
number. Random numbers are not included, because the seed and the step determine them.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mlx.utils import tree_unflatten

from mlx_attn.arrays import Arrays, check_weights, load_arrays, named_arrays, save_arrays
from mlx_attn.errors import RunError
from mlx_attn.model.gpt import GPT
from mlx_attn.records import Count, Object, Seconds, check_agrees, parse_record
from mlx_attn.training.evaluation import Evaluation
from mlx_attn.training.optimizers import GroupedOptimizer


def get_state(model: GPT, optimizer: GroupedOptimizer) -> Arrays:
    """Return the current weights and optimizer states."""
    return named_arrays({"model": model.parameters(), "optimizer": optimizer.state})


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


def save_checkpoint(
    path: Path, model: GPT, optimizer: GroupedOptimizer, progress: Progress, recipe: Object
) -> None:
    """Write everything that resuming needs, and the recipe that belongs to it."""
    facts = {"progress": json.dumps(asdict(progress)), "recipe": json.dumps(recipe)}
    save_arrays(path, get_state(model, optimizer), facts)


def load_checkpoint(
    path: Path, model: GPT, optimizer: GroupedOptimizer, recipe: Object
) -> Progress:
    """Restore model and optimizer in place, and return the progress.

    Call this before the first step: the compiled step refers to these containers.

    Raises:
        RunError: The file is missing, damaged, or has another configuration or recipe.
    """
    arrays, facts = load_arrays(path)
    if "progress" not in facts:
        raise RunError(f"{path}: only weights, no checkpoint: there is nothing to resume from")
    progress = parse_record(facts["progress"], Progress, f"{path}, progress")
    weights = {n.removeprefix("model."): a for n, a in arrays.items() if n.startswith("model.")}
    check_weights(path, model, weights)
    now = get_state(model, optimizer)
    # Names, shapes and types identify the optimizer: Muon's stacks differ from AdamW's vectors.
    saved, expected = (
        {name: (array.shape, array.dtype) for name, array in each.items()} for each in (arrays, now)
    )
    if saved != expected:
        raise RunError(f"{path}: saved by another optimizer; resume with the run's own settings")
    check_agrees(facts.get("recipe", "{}"), recipe, str(path))
    # Everything is checked before the first array changes.
    tree: Any = tree_unflatten(list(arrays.items()))
    model.update(tree["model"])
    # Update the dictionaries in place: compiled steps hold references to them.
    for state, values in zip(optimizer.state, tree["optimizer"], strict=True):
        state.update(values)
    optimizer.read()
    return progress
