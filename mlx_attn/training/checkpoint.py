"""All that a training step changes, as one flat mapping: to be saved, or stacked with others'.

Weights are under "model.", the optimizers' states under "optimizer.". Random numbers are not among
them: MLX has one stream for the whole process.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_unflatten

from mlx_attn.arrays import check_weights, load_arrays, named_arrays, save_arrays
from mlx_attn.errors import RunError
from mlx_attn.model.gpt import GPT
from mlx_attn.training.evaluation import Evaluation
from mlx_attn.training.optimizers import GroupedOptimizer

MODEL, OPTIMIZER = "model.", "optimizer."


def get_state(model: GPT, optimizer: GroupedOptimizer) -> dict[str, mx.array]:
    """Weights and optimizer states as they are now."""
    return {
        **_prefixed(MODEL, named_arrays(model)),
        **_prefixed(OPTIMIZER, named_arrays(list(optimizer.state))),
    }


def set_state(arrays: Mapping[str, mx.array], model: GPT, optimizer: GroupedOptimizer) -> None:
    """Make a gathered state that of the training, in its own containers."""
    model.update(nested(strip_prefix(MODEL, arrays)))
    restore(optimizer, strip_prefix(OPTIMIZER, arrays))


def restore(optimizer: GroupedOptimizer, arrays: Mapping[str, mx.array]) -> None:
    """Give the optimizers their states, whose names begin with the optimizer's place."""
    for state, values in zip(optimizer.state, nested(arrays), strict=True):
        state.update(values)


def nested(arrays: Mapping[str, mx.array]) -> Any:
    """The tree whose `named_arrays` these are."""
    return tree_unflatten(list(arrays.items()))


def strip_prefix(prefix: str, arrays: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """The arrays whose names begin with the prefix, without it."""
    return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}


def _prefixed(prefix: str, arrays: Mapping[str, mx.array]) -> dict[str, mx.array]:
    return {prefix + name: array for name, array in arrays.items()}


@dataclass(slots=True)
class Progress:
    """Where a training stands.

    Attributes:
        step: Steps done.
        seconds: Training time so far, validation included.
        timed_steps: Steps whose time is known: all but the first after each start.
        training_seconds: What these took, validation excluded.
        evaluated_step: Step of the latest validation.
        best_loss: Lowest validation loss so far, in nats per token.
        best_bits_per_byte: The same per byte of text; None for a task.
        best_above_floor: `Evaluation.above_floor` of that validation.
        best_abilities: What each ability contributed to it.
        best_accuracy: Share of a task's answers that were right.
        waited: Validations since the best one.
        peak_memory: Bytes.
    """

    step: int = 0
    seconds: float = 0.0
    timed_steps: int = 0
    training_seconds: float = 0.0
    evaluated_step: int = 0
    best_loss: float = float("inf")
    best_bits_per_byte: float | None = None
    best_above_floor: float | None = None
    best_abilities: Mapping[str, float] | None = None
    best_accuracy: float | None = None
    waited: int = 0
    peak_memory: int = 0

    def record(self, result: Evaluation, best: bool) -> None:
        """Take note of a validation of this step."""
        self.evaluated_step = self.step
        self.waited = 0 if best else self.waited + 1
        if best:
            self.best_loss, self.best_bits_per_byte = result.loss, result.bits_per_byte
            self.best_above_floor = result.above_floor
            self.best_abilities = dict(result.abilities)
            self.best_accuracy = result.accuracy


def save_checkpoint(
    path: Path, model: GPT, optimizer: GroupedOptimizer, progress: Progress
) -> None:
    """Write everything that resuming needs.

    Raises:
        RunError: The file cannot be written.
    """
    facts = {"progress": json.dumps(asdict(progress))}
    save_arrays(path, training_state(model, optimizer), facts)


def load_checkpoint(path: Path, model: GPT, optimizer: GroupedOptimizer) -> Progress:
    """Restore model, optimizer and random state in place; return where the training stood.

    Must be called before the first step: the compiled step holds on to these very containers.

    Raises:
        RunError: The file is missing, damaged, or of another configuration.
    """
    if not path.exists():
        raise RunError(f"{path}: no such file: nothing was saved there to go on from")
    arrays, facts = load_arrays(path)
    progress = _progress(path, facts)
    check_weights(path, model, strip_prefix(MODEL, arrays))
    _check_optimizer(path, optimizer, strip_prefix(OPTIMIZER, arrays))
    restore_state(arrays, model, optimizer)
    return progress


def training_state(model: GPT, optimizer: GroupedOptimizer) -> dict[str, mx.array]:
    """Weights, optimizer states and the random state, by name."""
    random: Any = mx.random.state
    return {**get_state(model, optimizer), "random": random[0]}


def restore_state(arrays: Mapping[str, mx.array], model: GPT, optimizer: GroupedOptimizer) -> None:
    """Put a `training_state` back in place."""
    set_state(arrays, model, optimizer)
    high, low = (int(half) for half in np.array(arrays["random"]))
    mx.random.seed((high << 32) | low)


def _check_optimizer(
    path: Path, optimizer: GroupedOptimizer, saved: Mapping[str, mx.array]
) -> None:
    expected = named_arrays(list(optimizer.state))
    if {n: a.shape for n, a in saved.items()} != {n: a.shape for n, a in expected.items()}:
        raise RunError(f"{path}: saved by another optimizer; resume with the run's own settings")


def _progress(path: Path, facts: Mapping[str, str]) -> Progress:
    if "progress" not in facts:
        raise RunError(f"{path}: weights alone, no checkpoint: there is nothing to resume from")
    record = json.loads(facts["progress"])
    known = {field.name for field in fields(Progress)}
    return Progress(**{key: value for key, value in record.items() if key in known})
