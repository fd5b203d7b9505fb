"""The source of a choice's functions, for a file that runs without this package.

An exported folder carries the functions that compute its model as they stand in the package or in
a user's plugin, without decorators and annotations. What they use must be there too: MLX, `math`,
what `mlx_attn.interop.portable` provides, numbers, and other functions of the same kind. Anything
else is refused with the name of the choice and of what it uses.
"""

import ast
import builtins
import inspect
import linecache
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from types import FunctionType, ModuleType
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from mlx_attn.attention.config import Choice
from mlx_attn.attention.layer import merge_heads, split_heads
from mlx_attn.errors import ConfigError
from mlx_attn.exponentials import gelu, softmax

PROVIDED: dict[Any, str] = {
    **{split_heads: "split_heads", merge_heads: "merge_heads"},
    **{softmax: "softmax", gelu: "gelu"},
}
"""Functions of the package that `portable` has under the same name."""
_MODULES = {"mlx.core": "mx", "mlx.nn": "nn", "math": "math"}
_PLAIN = (int, float, str, bool, type(None))

_SAME = """abs arange clip concatenate cos cumsum einsum exp eye log log1p logaddexp maximum minimum
rsqrt sigmoid sin softmax sqrt square stack tanh tril triu where zeros_like ones_like linalg"""
TORCH_OPERATIONS = {f"mx.{name}": f"torch.{name}" for name in _SAME.split()} | {
    "mx.array": "torch.tensor",
    "mx.float32": "torch.float32",
    "mx.inf": 'float("inf")',
    "mx.max": "lambda y, axis, keepdims=False: torch.amax(y, axis, keepdims)",
    "mx.mean": "torch.mean",
    "mx.min": "lambda y, axis, keepdims=False: torch.amin(y, axis, keepdims)",
    "mx.ones": "lambda shape, dtype=None: torch.ones(shape, dtype=dtype)",
    "mx.repeat": "lambda y, count, axis: torch.repeat_interleave(y, count, axis)",
    "mx.stop_gradient": "lambda y: y.detach()",
    "mx.sum": "torch.sum",
    "mx.zeros": "lambda shape, dtype=None: torch.zeros(shape, dtype=dtype)",
    "nn.log_sigmoid": "torch.nn.functional.logsigmoid",
    "nn.relu": "torch.relu",
    "nn.silu": "torch.nn.functional.silu",
    "nn.softplus": "torch.nn.functional.softplus",
}
"""PyTorch's operation for one of MLX's, with the same arguments; PyTorch knows `axis` too."""
_TORCH_METHODS = {"abs", "cumsum", "dtype", "exp", "flatten", "log", "mean", "ndim", "reshape"}
_TORCH_METHODS |= {"shape", "sqrt", "square", "squeeze", "sum", "swapaxes", "T"}


class NotPortable(ConfigError):
    """A choice computes with what does not ship."""


@dataclass
class Sources:
    """The source of functions and of what they use, in the order in which they are needed.

    Attributes:
        texts: Definitions by name.
        operations: What they use of MLX, such as "mx.exp".
        methods: Attributes of arrays that they use.
    """

    texts: dict[str, str] = field(default_factory=dict)
    operations: set[str] = field(default_factory=set)
    methods: set[str] = field(default_factory=set)
    _made_of: dict[str, Any] = field(default_factory=dict)

    def add(self, choice: Choice, function: Callable[..., Any], reserved: Iterable[str]) -> str:
        """Add a function of a choice; return its name there.

        Args:
            choice: For the error.
            function: Its `apply` or `remembers`.
            reserved: Names that the file around it has already.

        Raises:
            NotPortable: It uses what does not ship.
        """
        try:
            return self._add(inspect.unwrap(function), {*reserved}, f"{choice.map}_{choice.name}")
        except NotPortable as error:
            raise NotPortable(f"{choice.map}={choice.name} has no code to ship: {error}") from None

    def _add(self, function: Callable[..., Any], reserved: set[str], fallback: str) -> str:
        if not isinstance(function, FunctionType):
            raise NotPortable(f"{function!r} is no function of Python")
        if function.__code__.co_freevars:
            raise NotPortable(f"{function.__name__} uses variables of the function around it")
        lines, node = _definition(function)
        name = function.__name__ if isinstance(node, ast.FunctionDef) else fallback
        if not self._is_new(name, function, reserved):
            return name
        for used in _free_names(node):
            self._add_used(used, function, reserved)
        self._note_operations(node, function)
        text = _without_annotations(lines, node)
        self.texts[name] = text if isinstance(node, ast.FunctionDef) else f"{name} = {text}"
        return name

    def _is_new(self, name: str, what: Any, reserved: set[str]) -> bool:
        if name in reserved:
            raise NotPortable(f"{name} is the name of another part of the file: rename it")
        if self._made_of.setdefault(name, what) is not what:
            raise NotPortable(f"two of its parts are called {name}: rename one")
        return name not in self.texts

    def _add_used(self, name: str, function: FunctionType, reserved: set[str]) -> None:
        value = function.__globals__.get(name, builtins)
        if _is_there(name, value):
            return
        value = inspect.unwrap(value) if callable(value) else value
        if isinstance(value, FunctionType) and _is_of_choices(value, function):
            made = self._add(value, reserved, name)
            if made != name:
                raise NotPortable(f"{name} is another name of {made}: use that one")
        elif isinstance(value, Choice) and self._is_new(name, value, reserved):
            made = self._add(inspect.unwrap(value.apply), reserved, name)
            self.texts[name] = f"{name} = SimpleNamespace(apply={made})"
        elif _is_plain(value) and self._is_new(name, value, reserved):
            self.texts[name] = f"{name} = {value!r}"
        elif name not in self.texts:
            home = getattr(value, "__module__", "") or type(value).__name__
            raise NotPortable(f"{function.__name__} uses {name} of {home}, which does not ship")

    def _note_operations(self, node: ast.AST, function: FunctionType) -> None:
        for part in _computing(node):
            if isinstance(part, ast.Attribute):
                base = part.value.id if isinstance(part.value, ast.Name) else ""
                module = function.__globals__.get(base) if base else None
                if module is mx or module is nn:
                    self.operations.add(f"{base}.{part.attr}")
                elif hasattr(mx.array, part.attr) and module is None:
                    self.methods.add(part.attr)

    def torch_obstacle(self) -> str:
        """Return what PyTorch does not share with MLX; empty if the same source runs there."""
        foreign = sorted(self.operations - TORCH_OPERATIONS.keys())
        foreign += [f".{name}" for name in sorted(self.methods - _TORCH_METHODS)]
        return f"PyTorch has no {', '.join(foreign)} of the same meaning" if foreign else ""


def _is_there(name: str, value: Any) -> bool:
    """Whether a shipped file has a name already: Python's, MLX's, or one that it provides."""
    if isinstance(value, ModuleType):
        return hasattr(value, name) if value is builtins else _MODULES.get(value.__name__) == name
    return isinstance(value, FunctionType) and PROVIDED.get(value) == name


def _is_of_choices(used: FunctionType, by: FunctionType) -> bool:
    """Whether a function is written as choices are: beside one, or in the package's attention."""
    return used.__module__ == by.__module__ or used.__module__.startswith("mlx_attn.attention.")


def _is_plain(value: Any) -> bool:
    items = value if isinstance(value, tuple | list) else [value]
    return all(isinstance(item, _PLAIN) for item in items)


@cache
def _parsed(file: str) -> tuple[list[str], ast.Module]:
    lines = linecache.getlines(file)
    return lines, ast.parse("".join(lines))


def _definition(function: FunctionType) -> tuple[list[str], ast.FunctionDef | ast.Lambda]:
    """Return the lines of a function's file, and the function in them."""
    code = function.__code__
    lines, tree = _parsed(code.co_filename)
    arguments = list(code.co_varnames[: code.co_argcount])
    made = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.Lambda)
        and _first_line(node) == code.co_firstlineno
        and [argument.arg for argument in node.args.args] == arguments
    ]
    if len(made) != 1:
        raise NotPortable(f"{function.__name__} cannot be found in {code.co_filename}: write a def")
    return lines, made[0]


def _first_line(node: ast.FunctionDef | ast.Lambda) -> int:
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _free_names(node: ast.FunctionDef | ast.Lambda) -> list[str]:
    """Return the names that a function reads and does not define."""
    names = [part for part in _computing(node) if isinstance(part, ast.Name)]
    bound = {name.id for name in names if isinstance(name.ctx, ast.Store)}
    bound |= {part.arg for part in ast.walk(node) if isinstance(part, ast.arg)}
    bound |= {part.name for part in ast.walk(node) if isinstance(part, ast.FunctionDef)}
    return list(dict.fromkeys(name.id for name in names if name.id not in bound))


def _computing(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a function that are computed: no decorator and no annotation."""
    yield node
    for key, value in ast.iter_fields(node):
        if key not in ("decorator_list", "annotation", "returns"):
            for part in value if isinstance(value, list) else [value]:
                if isinstance(part, ast.AST):
                    yield from _computing(part)


def _without_annotations(lines: list[str], node: ast.FunctionDef | ast.Lambda) -> str:
    """Return the source of a function from `def` on; annotations name what does not ship."""
    source = "".join(lines).encode()
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line.encode()))

    def place(line: int | None, column: int | None) -> int:
        return starts[(line or 1) - 1] + (column or 0)

    first, last = place(node.lineno, node.col_offset), place(node.end_lineno, node.end_col_offset)
    cuts: list[tuple[int, int]] = []
    for argument in ast.walk(node.args):
        if isinstance(argument, ast.arg) and (note := argument.annotation):
            named = place(argument.lineno, argument.col_offset) + len(argument.arg.encode())
            cuts.append((named, place(note.end_lineno, note.end_col_offset)))
    if isinstance(node, ast.FunctionDef) and node.returns:
        arrow = source.rindex(b"->", first, place(node.returns.lineno, node.returns.col_offset))
        cuts.append((arrow - 1, place(node.returns.end_lineno, node.returns.end_col_offset)))
    for start, end in sorted(cuts, reverse=True):
        source, last = source[:start] + source[end:], last - (end - start)
    indent = " " * (node.col_offset if isinstance(node, ast.FunctionDef) else 0)
    return textwrap.dedent(indent + source[first:last].decode())
