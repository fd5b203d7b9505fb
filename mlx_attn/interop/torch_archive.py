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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


@dataclass(frozen=True, slots=True)
class _Storage:
    key: str
    dtype: np.dtype
    size: int


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A view of a storage, as strides in elements."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _rebuild(storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any) -> _Tensor:
    """Return a tensor; refuse one with elements outside its storage, or more than the storage."""
    are_tuples = isinstance(storage, _Storage) and {type(shape), type(strides)} == {tuple}
    if not are_tuples or not all(type(n) is int and n >= 0 for n in (offset, *shape, *strides)):
        raise ValueError("a tensor is not one")
    size, steps = math.prod(shape), zip(shape, strides, strict=True)
    reach = offset + (sum((n - 1) * step for n, step in steps) + 1 if size else 0)
    if max(size, reach) > storage.size:
        raise ValueError(
            f"a tensor of shape {list(shape)} needs more than the {storage.size} numbers of its "
            "storage"
        )
    return _Tensor(storage, offset, shape, strides)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "torch._utils _rebuild_tensor_v2": _rebuild,
    "torch._utils _rebuild_parameter": lambda tensor, *rest: tensor,
    "collections OrderedDict": lambda: {},
    "torch Size": lambda sizes: tuple(sizes),
}
"""All functions that a checkpoint may call, by the name in its program."""

_MARK = object()
_PUSHED: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "MARK": lambda: _MARK,
    "EMPTY_TUPLE": tuple,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_NUMBERS = ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT")
_LITERALS = frozenset({*_NUMBERS, "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"})
_IGNORED = frozenset({"PROTO", "FRAME"})


class _Machine:
    """A stack machine for a checkpoint's program, with only plain values in stack and memory."""

    def __init__(self):
        self.stack: list[Any] = []
        self.memory: dict[int, Any] = {}

    def run(self, program: bytes) -> Any:
        """Return the value that the program builds."""
        for instruction, argument, place in pickletools.genops(program):
            name = instruction.name
            if name == "STOP":
                return self.stack.pop()
            if name in _LITERALS:
                self.stack.append(argument)
            elif name in _PUSHED:
                self.stack.append(_PUSHED[name]())
            elif name in _TUPLES:
                self.stack[-_TUPLES[name] :] = [tuple(self.stack[-_TUPLES[name] :])]
            elif name not in _IGNORED:
                step = getattr(self, f"_{name.lower()}", None)
                if step is None:
                    raise ValueError(
                        f"the instruction {name} at byte {place} is none of a state dict's"
                    )
                step(argument)
        raise ValueError("it ends too early")

    def _marked(self) -> list[Any]:
        """Pop the last mark and return the items above it."""
        start = max(i for i, item in enumerate(self.stack) if item is _MARK)
        items = self.stack[start + 1 :]
        del self.stack[start:]
        return items

    def _tuple(self, argument: Any) -> None:
        self.stack.append(tuple(self._marked()))

    def _setitem(self, argument: Any) -> None:
        self.stack.insert(-2, _MARK)
        self._setitems(argument)

    def _setitems(self, argument: Any) -> None:
        items = self._marked()
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str | int):  # a nested tuple may be slow to hash
                raise ValueError(f"a {type(key).__name__} is a key in it")
            self.stack[-1][key] = value

    def _append(self, argument: Any) -> None:
        self.stack.insert(-1, _MARK)
        self._appends(argument)

    def _appends(self, argument: Any) -> None:
        items = self._marked()
        self.stack[-1].extend(items)

    def _binput(self, argument: Any) -> None:
        self.memory[argument] = self.stack[-1]

    _long_binput = _binput

    def _memoize(self, argument: Any) -> None:
        self.memory[len(self.memory)] = self.stack[-1]

    def _binget(self, argument: Any) -> None:
        self.stack.append(self.memory[argument])

    _long_binget = _binget

    def _global(self, argument: Any) -> None:
        """Push a permitted function or type by its name; import nothing."""
        module, _, word = argument.partition(" ")
        if module == "torch" and word in _STORAGES:
            self.stack.append(_STORAGES[word])
        elif argument in _FUNCTIONS:
            self.stack.append(_FUNCTIONS[argument])
        else:
            raise ValueError(
                f"it asks for {module}.{word}, which no state dict needs: save with "
                "torch.save(model.state_dict(), path)"
            )

    def _stack_global(self, argument: Any) -> None:
        word, module = self.stack.pop(), self.stack.pop()
        self._global(f"{module} {word}")

    def _binpersid(self, argument: Any) -> None:
        match self.stack.pop():
            case ("storage", np.dtype() as dtype, str(key), _, int(size)):
                self.stack.append(_Storage(key, dtype, size))
            case _:
                raise ValueError("it refers to something that is no storage")

    def _reduce(self, argument: Any) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if function not in _FUNCTIONS.values() or not isinstance(arguments, tuple):
            raise ValueError("it calls something that is no function of a state dict's")
        self.stack.append(function(*arguments))

    def _build(self, argument: Any) -> None:
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
            program = _program(archive, path.stat().st_size)
            tensors = _state_dict(_Machine().run(archive.read(program)))
            prefix = program.removesuffix("data.pkl")
            storages = dict.fromkeys(tensor.storage for tensor in tensors.values())
            numbers = {storage: _numbers(archive, prefix, storage) for storage in storages}
            return {name: _view(numbers[part.storage], part) for name, part in tensors.items()}
    except zipfile.BadZipFile as error:
        raise RunError(
            f"{path}: no checkpoint of PyTorch 1.6 or later (those are zip archives): load it with "
            "torch and save it again"
        ) from error
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror or error})") from error
    except _WRONG as error:
        raise RunError(f"{path}: refused, nothing of it was executed: {error}") from error


def _program(archive: zipfile.ZipFile, size: int) -> str:
    """Return the name of the program; refuse an archive that would unpack to more than its size."""
    infos = archive.infolist()
    for info in infos:
        if info.compress_type != zipfile.ZIP_STORED:
            sizes = f"{info.compress_size:,} bytes that unpack to {info.file_size:,}"
            raise ValueError(f"{info.filename} is compressed, {sizes}; torch compresses nothing")
    claimed = sum(info.file_size for info in infos)
    if claimed > size:
        raise ValueError(f"its members claim {claimed:,} bytes, and the file has {size:,}")
    for info in infos:
        if info.filename.split("/")[1:] == ["data.pkl"]:
            return info.filename
    raise ValueError("there is no data.pkl in it, so torch.save did not write it")


def _state_dict(content: Any) -> Mapping[str, _Tensor]:
    """Return the tensors by name; in a checkpoint with an optimizer, only the model's tensors."""
    for key in ("model_state_dict", "state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict):
        raise ValueError(
            f"it holds a {type(content).__name__} and no state dict: save with "
            "torch.save(model.state_dict(), path)"
        )
    tensors = {str(name): part for name, part in content.items() if isinstance(part, _Tensor)}
    if not tensors:
        raise ValueError("there is no tensor in it")
    return tensors


def _numbers(archive: zipfile.ZipFile, prefix: str, storage: _Storage) -> np.ndarray:
    data, size = archive.read(f"{prefix}data/{storage.key}"), storage.size
    if len(data) != size * storage.dtype.itemsize:
        raise ValueError(
            f"storage {storage.key} has {len(data):,} bytes and not {size} {storage.dtype}"
        )
    return np.frombuffer(data, storage.dtype)


def _view(numbers: np.ndarray, tensor: _Tensor) -> mx.array:
    dtype, offset = numbers.dtype, tensor.offset * numbers.itemsize
    strides = [step * numbers.itemsize for step in tensor.strides]
    view = np.ndarray(tensor.shape, dtype, numbers, offset, strides)
    if dtype == np.float64:
        return mx.array(view.astype(np.float32))
    array = mx.array(np.ascontiguousarray(view).reshape(tensor.shape))
    return array.view(mx.bfloat16) if dtype == np.uint16 else array


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
    names = {identity: str(n) for n, identity in enumerate(distinct)}
    with atomic_write(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        archive.writestr("model/data.pkl", b"".join(_instructions(arrays, names)))
        archive.writestr("model/byteorder", "little")
        for identity, array in distinct.items():
            with archive.open(f"model/data/{names[identity]}", "w", force_zip64=True) as member:
                member.write(np.ascontiguousarray(np.array(array.astype(mx.float32)), "<f4").data)
        archive.writestr("model/version", "3\n")


def _instructions(arrays: Mapping[str, mx.array], names: Mapping[int, str]) -> Iterator[bytes]:
    yield _BEGINNING
    for name, array in arrays.items():
        shape = array.shape
        strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
        yield _text(name)
        yield b"ctorch._utils\n_rebuild_tensor_v2\n(("
        yield _text("storage") + b"ctorch\nFloatStorage\n" + _text(names[id(array)])
        yield _text("cpu") + _number(array.size) + b"tQ" + _number(0)
        yield b"(" + b"".join(map(_number, shape)) + b"t"
        yield b"(" + b"".join(map(_number, strides)) + b"t"
        yield b"\x89ccollections\nOrderedDict\n)RtR"
    yield b"u."


def _text(text: str) -> bytes:
    return b"X" + struct.pack("<I", len(text.encode())) + text.encode()


def _number(number: int) -> bytes:
    return b"J" + struct.pack("<i", number)
