"""A user's optimizer: any of MLX's, one array at a time, under this program's schedule."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim
from mlx.utils import tree_flatten, tree_map

from mlx_attn.arrays import Arrays
from mlx_attn.errors import ConfigError
from mlx_attn.parts import Part
from mlx_attn.training.config import TrainConfig


class OwnOptimizer:
    """Moves each parameter by an optimizer of MLX, whose learning rate is set before every step.

    Its state belongs to the arrays of `packed`, numbered as in AdamW and Muon.
    """

    def __init__(self, inner: optim.Optimizer):
        self.inner = inner
        self.init, self.packed = inner.init, lambda arrays: list(arrays.values())

    @property
    def state(self) -> dict[str, Any]:
        """Return the state itself, not a copy."""
        return self.inner.state

    def updated(self, gradients: list[mx.array], parameters: Arrays, factor: mx.array) -> Arrays:
        """Return the parameters after one step; see `Muon.updated` for the arguments."""
        # Numbered, not named: the state must not depend on the names of the parameters.
        clipped = {str(i): factor * gradient for i, gradient in enumerate(gradients)}
        arrays = {str(i): array for i, array in enumerate(parameters.values())}
        moved = self.inner.apply_gradients(clipped, arrays)
        return {name: moved[str(i)] for i, name in enumerate(parameters)}


def own_optimizer(part: Part, config: TrainConfig) -> OwnOptimizer:
    """Return a user's optimizer, tried on two small arrays.

    Raises:
        ConfigError: It is not an optimizer of MLX, has its own schedule, changes a shape, or does
            not resume to the same numbers from its state.
    """
    name = f"optimizer={part.name}"

    def make() -> OwnOptimizer:
        inner = part.apply(config) if part.apply else None
        if not isinstance(inner, optim.Optimizer):
            kind = type(inner).__name__
            raise ConfigError(f"{name} must return an mlx.optimizers.Optimizer, not a {kind}")
        if "learning_rate" in getattr(inner, "_schedulers", {}):
            raise ConfigError(f"{name} has a schedule of its own: give it c.lr, and use --schedule")
        return OwnOptimizer(inner)

    if broken := _broken_law(make):
        raise ConfigError(f"{name} {broken}")
    return make()


def _broken_law(make: Callable[[], OwnOptimizer]) -> str:
    """Return the law that an optimizer breaks; empty if it keeps all."""
    start = {"matrix": mx.arange(12.0).reshape(4, 3) / 12, "vector": mx.ones(3)}
    first = make()
    first.init({str(i): array for i, array in enumerate(start.values())})
    moved = _step(first, start)
    if any(moved[name].shape != array.shape for name, array in start.items()):
        return "changes the shape of a parameter"
    leaves = tree_flatten(first.state)
    if others := [path for path, leaf in leaves if not isinstance(leaf, mx.array)]:
        return f"has a state that is not saved: {others[0]} must be an mx.array"
    resumed = make()
    resumed.init({str(i): array for i, array in enumerate(start.values())})
    # A second optimizer from the state of the first must take the same next step.
    resumed.state.update(tree_map(lambda array: array, first.state))  # a copy of the containers
    last, again = _step(first, moved), _step(resumed, moved)
    if not all(mx.isfinite(array).all() for array in last.values()):
        return "gives weights that are not finite"
    if not all(mx.array_equal(array, again[name]) for name, array in last.items()):
        return "does not resume to the same numbers: keep all that it remembers in its state"
    return ""


def _step(optimizer: OwnOptimizer, parameters: Arrays) -> Arrays:
    optimizer.state["learning_rate"] = mx.array(1e-3)
    gradients = [mx.cos(array) for array in parameters.values()]
    return optimizer.updated(gradients, parameters, mx.array(1.0))
