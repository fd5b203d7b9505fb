"""Named arrays: parameter trees as flat mappings, and safetensors files."""

from collections.abc import Mapping
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
    """How many numbers a module trains."""
    return sum(array.size for array in named_arrays(module.trainable_parameters()).values())


def check_weights(path: Path, model: nn.Module, arrays: Mapping[str, mx.array]) -> None:
    """Refuse a file's arrays if a name, a shape or a kind of number is not the model's."""
    weights = named_arrays(model)
    for name in sorted(weights.keys() | arrays.keys()):
        given = arrays[name].shape if name in arrays else "missing"
        expected = weights[name].shape if name in weights else "none"
        if given != expected:
            raise RunError(
                f"{path}: belongs to a model of another configuration: {name} is {given}, "
                f"its configuration asks for {expected}"
            )
        is_float = mx.issubdtype(weights[name].dtype, mx.floating)
        if mx.issubdtype(arrays[name].dtype, mx.floating) != is_float:
            kind = "floating-point" if is_float else "whole"
            raise RunError(f"{path}: {name} is {arrays[name].dtype}, which are no {kind} numbers")


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
