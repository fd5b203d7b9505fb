"""Named arrays: parameter trees as flat mappings, and safetensors files."""

from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from mlx_attn.errors import RunError, one_line
from mlx_attn.files import atomic_write

Arrays = dict[str, mx.array]
"""By name."""


def named_arrays(tree: Any) -> Arrays:
    """Return the arrays of a tree by path, such as "trf_blocks.0.att.W_query.weight".

    For a module, its parameters are taken.
    """
    if isinstance(tree, nn.Module):
        tree = tree.parameters()
    pairs: Any = tree_flatten(tree)
    return dict(pairs)


def count_parameters(module: nn.Module) -> int:
    """Return how many numbers a module trains."""
    return sum(array.size for array in named_arrays(module.trainable_parameters()).values())


def check_weights(place: str | Path, model: nn.Module, arrays: Mapping[str, mx.array]) -> None:
    """Refuse arrays whose names, shapes or kinds are not the model's, or that are not finite."""
    weights = named_arrays(model)
    faults = {
        "the model has no place for": arrays.keys() - weights.keys(),
        "it lacks": weights.keys() - arrays.keys(),
    }
    if problems := [f"{words} {_some(names)}" for words, names in faults.items() if names]:
        raise RunError(f"{place}: {', and '.join(problems)}")
    for name, array in sorted(arrays.items()):
        if array.shape != (expected := weights[name].shape):
            shapes = f"{array.shape}, and its configuration asks for {expected}"
            raise RunError(f"{place}: {name} is {shapes}")
        is_float = mx.issubdtype(weights[name].dtype, mx.floating)
        if mx.issubdtype(array.dtype, mx.floating) != is_float:
            kind = "floating-point" if is_float else "whole"
            raise RunError(f"{place}: {name} is {array.dtype}, which are no {kind} numbers")
    if broken := {name for name, array in arrays.items() if not mx.isfinite(array).all().item()}:
        reason = "not all of its numbers are finite, as if a training diverged"
        raise RunError(f"{place}: {_some(broken)}: {reason}")


def _some(names: Set[str]) -> str:
    """Return the first names, and the number of the others."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(sorted(names)[:3]) + more


def save_arrays(path: Path, arrays: Mapping[str, mx.array], facts: Mapping[str, str]) -> None:
    """Write arrays as safetensors, with facts in the header."""
    mx.eval(list(arrays.values()))
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        mx.save_safetensors(file, dict(arrays), {"format": "mlx", **facts})


def load_arrays(path: Path) -> tuple[dict[str, mx.array], dict[str, str]]:
    """Read a safetensors file: its arrays, and the facts in its header.

    Raises:
        RunError: The file is missing or damaged.
    """
    if not path.is_file():
        raise RunError(f"{path}: no such file; is this the directory of a finished run?")
    try:
        loaded: Any = mx.load(str(path), format="safetensors", return_metadata=True)
        mx.eval(list(loaded[0].values()))
    except (OSError, RuntimeError, ValueError) as error:
        # Such as a type that MLX lacks, or too little memory.
        raise RunError(f"{path}: cannot be read ({one_line(error)})") from error
    return loaded
