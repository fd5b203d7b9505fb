"""All that a training step changes, as one flat mapping: to be saved, or stacked with others'.

Weights are under "model.", the optimizers' states under "optimizer.". Random numbers are not among
them: MLX has one stream for the whole process.
"""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
from mlx.utils import tree_unflatten

from mlx_attn.model import GPT
from mlx_attn.training.optimizers import GroupedOptimizer
from mlx_attn.trees import named_arrays

MODEL, OPTIMIZER = "model.", "optimizer."


def gathered(model: GPT, optimizer: GroupedOptimizer) -> dict[str, mx.array]:
    """Weights and optimizer states as they are now."""
    return {
        **_prefixed(MODEL, named_arrays(model)),
        **_prefixed(OPTIMIZER, named_arrays(list(optimizer.state))),
    }


def put_back(arrays: Mapping[str, mx.array], model: GPT, optimizer: GroupedOptimizer) -> None:
    """Make a gathered state that of the training, in its own containers."""
    model.update(nested(under(MODEL, arrays)))
    restore(optimizer, under(OPTIMIZER, arrays))


def restore(optimizer: GroupedOptimizer, arrays: Mapping[str, mx.array]) -> None:
    """Give the optimizers their states, whose names begin with the optimizer's place."""
    for state, values in zip(optimizer.state, nested(arrays), strict=True):
        state.update(values)


def nested(arrays: Mapping[str, mx.array]) -> Any:
    """The tree whose `named_arrays` these are."""
    return tree_unflatten(list(arrays.items()))


def under(prefix: str, arrays: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """The arrays whose names begin with the prefix, without it."""
    return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}


def _prefixed(prefix: str, arrays: Mapping[str, mx.array]) -> dict[str, mx.array]:
    return {prefix + name: array for name, array in arrays.items()}
