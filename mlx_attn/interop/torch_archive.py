"""Read and write PyTorch's `.pth` without PyTorch, and without executing code from the file.

Since PyTorch 1.6 a checkpoint is an uncompressed zip archive: `NAME/data.pkl` is a program for a
stack machine that builds the state dict, `NAME/data/KEY` holds the numbers of one storage. The
machine here supports only the few instructions and the four functions that a state dict needs;
anything else is refused by name before it runs.
"""

import math
import pickletools
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from mlx_attn.errors import RunError
from mlx_attn.files import atomic_write

_STORAGES = {
    "FloatStorage": np.dtype("<f4"),
    "HalfStorage": np.dtype("<f2"),
    "BFloat16Storage": np.dtype("<u2"),  # by its bits: NumPy has no such type
    "DoubleStorage": np.dtype("<f8"),
    "LongStorage": np.dtype("<i8"),
    "IntStorage": np.dtype("<i4"),
    "ShortStorage": np.dtype("<i2"),
    "CharStorage": np.dtype("i1"),
    "ByteStorage": np.dtype("u1"),
    "BoolStorage": np.dtype("?"),
}


class _Tensor(NamedTuple):
    """A view of a storage."""

    storage: tuple[str, np.dtype]  # its key in the archive, and the type of its numbers
    offset: int  # in elements, as are the strides
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def read(self, numbers: np.ndarray) -> mx.array:
        """Return the array; refuse elements outside the storage, or more than it has."""
        dtype, size = numbers.dtype, math.prod(self.shape)
        steps = zip(self.shape, self.strides, strict=True)
        reach = self.offset + (sum((n - 1) * step for n, step in steps) + 1 if size else 0)
        if min(self.offset, *self.shape, *self.strides, 0) < 0 or max(size, reach) > len(numbers):
            raise ValueError(
                f"a tensor of shape {list(self.shape)} needs more than the {len(numbers)} numbers "
                "of its storage"
            )
        strides = [step * dtype.itemsize for step in self.strides]
        view = np.ndarray(self.shape, dtype, numbers, self.offset * dtype.itemsize, strides)
        if dtype == np.float64:
            return mx.array(view.astype(np.float32))
        array = mx.array(np.ascontiguousarray(view).reshape(self.shape))
        return array.view(mx.bfloat16) if dtype == np.uint16 else array


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "torch._utils _rebuild_tensor_v2": lambda *arguments: _Tensor(*arguments[:4]),
    "torch._utils _rebuild_parameter": lambda tensor, *rest: tensor,
    "collections OrderedDict": lambda: {},
    "torch Size": tuple,
}
"""All functions that a checkpoint may call, by the name in its program."""

_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
}
_LITERALS = {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE"}
_COLLECTING = {
    **{"TUPLE": None, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3},
    **{"SETITEMS": None, "SETITEM": 2, "APPENDS": None, "APPEND": 1},
}
"""Instructions for the last items of the stack, with their number; None: those above a mark."""


class _Machine:
    """A stack machine for a checkpoint's program, with only plain values in stack and memory."""

    def __init__(self):
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []  # the stacks that marks have put aside
        self.memory: dict[int, Any] = {}

    def run(self, program: bytes) -> Any:
        """Return the value that the program builds."""
        for instruction, argument, place in pickletools.genops(program):
            name = instruction.name
            if name == "STOP":
                return self.stack.pop()
            if name in _LITERALS:
                self.stack.append(argument)
            elif name in _CONSTANTS:
                self.stack.append(_CONSTANTS[name]())
            elif name in _COLLECTING:
                self._collect(name.rstrip("S123"), _COLLECTING[name])
            elif step := getattr(self, f"_on_{name.removeprefix('LONG_').lower()}", None):
                step(argument)
            elif name != "PROTO":
                raise ValueError(
                    f"the instruction {name} at byte {place} is none of a state dict's"
                )
        raise ValueError("it ends too early")

    def _collect(self, into: str, count: int | None) -> None:
        if count is None:
            items, self.stack = self.stack, self.below.pop()
        else:
            items = [self.stack.pop() for _ in range(count)][::-1]
        if into == "TUPLE":
            self.stack.append(tuple(items))
        elif into == "APPEND":
            self.stack[-1].extend(items)
        else:
            keys = items[::2]
            if not all(isinstance(key, str | int) for key in keys):  # a tuple may be slow to hash
                raise ValueError(f"its keys are {', '.join({type(key).__name__ for key in keys})}")
            self.stack[-1].update(zip(keys, items[1::2], strict=True))

    def _on_mark(self, _: Any) -> None:
        self.below.append(self.stack)
        self.stack = []

    def _on_binput(self, place: int) -> None:
        self.memory[place] = self.stack[-1]

    def _on_binget(self, place: int) -> None:
        self.stack.append(self.memory[place])

    def _on_global(self, name: str) -> None:
        """Push a permitted function or type by its name; import nothing."""
        module, _, word = name.partition(" ")
        if module == "torch" and word in _STORAGES:
            self.stack.append(_STORAGES[word])
        elif name in _FUNCTIONS:
            self.stack.append(_FUNCTIONS[name])
        else:
            raise ValueError(
                f"it asks for {module}.{word}, which no state dict needs: save with "
                "torch.save(model.state_dict(), path)"
            )

    def _on_binpersid(self, _: Any) -> None:
        match self.stack.pop():
            case ("storage", np.dtype() as dtype, str(key), _, _):
                self.stack.append((key, dtype))
            case _:
                raise ValueError("it refers to something that is no storage")

    def _on_reduce(self, _: Any) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if function not in _FUNCTIONS.values() or not isinstance(arguments, tuple):
            raise ValueError("it calls something that is no function of a state dict's")
        self.stack.append(function(*arguments))

    def _on_build(self, _: Any) -> None:
        """Drop an ordered dict's attributes, such as `_metadata`."""
        state = self.stack.pop()
        if not (isinstance(self.stack[-1], dict) and isinstance(state, dict)):
            raise ValueError("it sets the state of an object")


_WRONG = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RuntimeError, EOFError)
"""Errors of a wrong archive; zipfile raises the last two for an encrypted or truncated one."""


def read_checkpoint(path: Path) -> dict[str, mx.array]:
    """Return the state dict of a `.pth` file, or the `model_state_dict` or `model` inside it.

    No code of the file is executed, and torch is not needed.

    Raises:
        RunError: The file is not a checkpoint of PyTorch 1.6 or later, asks for more than a state
            dict needs, or would unpack to more than its size.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _read(archive, path.stat().st_size)
    except zipfile.BadZipFile as error:
        raise RunError(
            f"{path}: no checkpoint of PyTorch 1.6 or later (those are zip archives): load it with "
            "torch and save it again"
        ) from error
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror or error})") from error
    except _WRONG as error:
        raise RunError(f"{path}: refused, nothing of it was executed: {error}") from error


def _read(archive: zipfile.ZipFile, size: int) -> dict[str, mx.array]:
    members = archive.infolist()
    for member in members:
        if member.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{member.filename} is compressed; torch compresses nothing")
    claimed = sum(member.file_size for member in members)
    if claimed > size:
        raise ValueError(f"its members claim {claimed:,} bytes, and the file has {size:,}")
    programs = [name for name in archive.namelist() if name.split("/")[1:] == ["data.pkl"]]
    if not programs:
        raise ValueError("there is no data.pkl in it, so torch.save did not write it")
    content = _Machine().run(archive.read(programs[0]))
    for key in ("model_state_dict", "state_dict", "model"):  # beside an optimizer's
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    items = content.items() if isinstance(content, dict) else ()
    tensors = {str(name): part for name, part in items if isinstance(part, _Tensor)}
    if not tensors:
        raise ValueError(
            f"it holds a {type(content).__name__} without tensors and no state dict: save with "
            "torch.save(model.state_dict(), path)"
        )
    folder = programs[0].removesuffix(".pkl")
    numbers = {
        (key, dtype): np.frombuffer(archive.read(f"{folder}/{key}"), dtype)
        for key, dtype in {tensor.storage for tensor in tensors.values()}
    }
    return {name: tensor.read(numbers[tensor.storage]) for name, tensor in tensors.items()}


# Writing: the same program, in protocol 2.

_BEGINNING = b"\x80\x02ccollections\nOrderedDict\n)R("
"""PyTorch's own programs remember the dictionary before they fill it."""


def is_exported_checkpoint(path: Path) -> bool:
    """Return True if `write_checkpoint` wrote the file."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open("model/data.pkl") as program:
            return program.read(len(_BEGINNING)) == _BEGINNING
    except (zipfile.BadZipFile, OSError, LookupError, RuntimeError, EOFError):
        return False


def write_checkpoint(path: Path, arrays: Mapping[str, mx.array]) -> None:
    """Write a state dict in float32, which `torch.load(path, weights_only=True)` reads.

    An array with several names is written once.
    """
    distinct = {id(array): array for array in arrays.values()}
    keys = {identity: str(n) for n, identity in enumerate(distinct)}
    with atomic_write(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        archive.writestr("model/data.pkl", b"".join(_instructions(arrays, keys)))
        archive.writestr("model/byteorder", "little")
        for identity, array in distinct.items():
            with archive.open(f"model/data/{keys[identity]}", "w", force_zip64=True) as member:
                member.write(np.ascontiguousarray(np.array(array.astype(mx.float32)), "<f4").data)
        archive.writestr("model/version", "3\n")


def _instructions(arrays: Mapping[str, mx.array], keys: Mapping[int, str]) -> Iterator[bytes]:
    yield _BEGINNING
    for name, array in arrays.items():
        shape = array.shape
        strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
        yield _text(name)
        yield b"ctorch._utils\n_rebuild_tensor_v2\n(("
        yield _text("storage") + b"ctorch\nFloatStorage\n" + _text(keys[id(array)])
        yield _text("cpu") + _number(array.size) + b"tQ" + _number(0)
        yield b"(" + b"".join(map(_number, shape)) + b"t"
        yield b"(" + b"".join(map(_number, strides)) + b"t"
        yield b"\x89ccollections\nOrderedDict\n)RtR"
    yield b"u."


def _text(text: str) -> bytes:
    return b"X" + struct.pack("<I", len(text.encode())) + text.encode()


def _number(number: int) -> bytes:
    return b"J" + struct.pack("<i", number)
