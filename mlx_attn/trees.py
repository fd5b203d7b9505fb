"""Between MLX's nested parameter trees and flat mappings from path to array."""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten


def named_arrays(tree: Any) -> dict[str, mx.array]:
    """The arrays of a tree by path, such as "trf_blocks.0.att.W_query.weight".

    A module stands for its parameters.
    """
    if isinstance(tree, nn.Module):
        tree = tree.parameters()
    pairs: Any = tree_flatten(tree)
    return dict(pairs)


def count_parameters(module: nn.Module) -> int:
    """How many numbers a module trains."""
    return sum(array.size for array in named_arrays(module.trainable_parameters()).values())
