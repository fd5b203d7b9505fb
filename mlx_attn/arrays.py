"""Named arrays: parameter trees as flat mappings, and safetensors files with a checksum."""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import msgspec
from mlx.utils import tree_flatten

from mlx_attn.errors import RunError
from mlx_attn.files import atomic_write
from mlx_attn.records import Count, Object, as_record, parse_record

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
    own = named_arrays(model)
    for name in sorted(own.keys() | arrays.keys()):
        given = arrays[name].shape if name in arrays else "missing"
        expected = own[name].shape if name in own else "none"
        if given != expected:
            raise RunError(
                f"{path}: belongs to a model of another configuration: {name} is {given}, "
                f"config.json asks for {expected}"
            )
        is_float = mx.issubdtype(own[name].dtype, mx.floating)
        if mx.issubdtype(arrays[name].dtype, mx.floating) != is_float:
            kind = "floating-point" if is_float else "whole"
            raise RunError(f"{path}: {name} is {arrays[name].dtype}, which are no {kind} numbers")


def save_arrays(path: Path, arrays: Mapping[str, mx.array], facts: Mapping[str, str]) -> None:
    """Write arrays as safetensors, with facts and a checksum in the header."""
    mx.eval(list(arrays.values()))
    metadata = {"format": "mlx", **facts}
    metadata["checksum"] = _checksum(arrays, metadata)
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        mx.save_safetensors(file, dict(arrays), metadata)


def load_arrays(path: Path) -> tuple[dict[str, mx.array], dict[str, str]]:
    """Read a file of `save_arrays`, checking that nothing of it is lost or changed.

    Files from elsewhere, without a checksum, are also read.

    Raises:
        RunError: The file is missing or damaged.
    """
    if not path.is_file():
        raise RunError(f"{path}: no such file; is this the directory of a finished run?")
    try:
        loaded: Any = mx.load(str(path), format="safetensors", return_metadata=True)
        arrays, facts = loaded
        mx.eval(list(arrays.values()))
    except (OSError, RuntimeError, ValueError) as error:
        check_whole(path)
        reason = " ".join(str(error).split())  # such as a type that MLX lacks, or too little memory
        raise RunError(f"{path}: cannot be read ({reason})") from error
    checksum = facts.pop("checksum", None)
    if checksum is not None and checksum != _checksum(arrays, facts):
        raise RunError(f"{path}: damaged: its checksum does not match; use another checkpoint")
    return arrays, facts


class _Entry(msgspec.Struct):
    """One array's entry in a safetensors header."""

    data_offsets: tuple[Count, Count]


def check_whole(path: Path) -> None:
    """Check a safetensors file's length against its header, without reading its numbers."""
    if path.exists() and not path.is_file():
        raise RunError(f"{path}: not a file")
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = int.from_bytes(file.read(8), "little")
            text = file.read(start).decode("utf-8", "replace") if start < size else "{}"
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror or error})") from error
    header = parse_record(text, Object, f"{path}, header")
    header.pop("__metadata__", None)
    entries = as_record(header, dict[str, _Entry], f"{path}, header")
    places = [entry.data_offsets[1] for entry in entries.values()]
    if size != 8 + start + max(places, default=0):
        raise RunError(f"{path}: damaged or truncated")


def _checksum(arrays: Mapping[str, mx.array], facts: Mapping[str, str]) -> str:
    """CRC-32 of all that the file holds: facts, names, types, shapes and numbers."""
    checksum = zlib.crc32(json.dumps(facts, sort_keys=True).encode())
    for name in sorted(arrays):
        array: Any = arrays[name]
        checksum = zlib.crc32(f"{name} {array.dtype} {array.shape}".encode(), checksum)
        checksum = zlib.crc32(memoryview(array).tobytes(), checksum)
    return f"{checksum:08x}"
