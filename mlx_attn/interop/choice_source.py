"""Collect the source of a choice's functions for a file that runs without this package.

An exported folder carries a copy of the functions that compute its model, from the package or from
a user's plugin. Annotations, which show the shapes, are not evaluated there. These functions may
use only MLX, `math`, the contents of `mlx_attn.interop.portable`, numbers, and other functions of
the same kind. Anything else is refused with an error that names the choice and the missing part.
"""

import ast
import builtins
import inspect
import linecache
import sys
import textwrap
from collections.abc import Callable, Iterator, Set
from functools import cache
from types import FunctionType, ModuleType
from typing import Any

import mlx.core as mx

from mlx_attn.attention.config import Choice
from mlx_attn.attention.layer import merge_heads, split_heads
from mlx_attn.errors import ConfigError
from mlx_attn.machine.exponentials import gelu, softmax

_PROVIDED = (split_heads, merge_heads, softmax, gelu)
"""Functions of the package that `portable` defines under the same name."""
_MODULES = {"mlx.core": "mx", "mlx.nn": "nn", "math": "math"}

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
"""PyTorch's operation for each of MLX's, with the same arguments; PyTorch accepts `axis` too."""
_METHODS = """abs cumsum dtype exp flatten log mean ndim reshape shape sqrt square squeeze sum
swapaxes T"""
_TORCH_METHODS = {f".{name}" for name in _METHODS.split()}


class NotPortable(ConfigError):
    """A choice uses something that cannot be exported."""


class Sources:
    """The source of functions and of their dependencies, in the order in which they are needed."""

    def __init__(self, reserved: Set[str]):
        self.texts: dict[str, str] = {}  # definitions by name
        self._reserved = reserved  # names that the exported file already uses
        self._objects: dict[str, Any] = {}

    def add(self, choice: Choice, function: Callable[..., Any]) -> str:
        """Add a function of a choice; return its name in the exported file.

        Raises:
            NotPortable: The function uses something that cannot be exported.
        """
        try:
            return self._add(inspect.unwrap(function), f"{choice.map}_{choice.name}")
        except NotPortable as error:
            raise NotPortable(f"{choice.map}={choice.name} has no code to ship: {error}") from None

    def _add(self, function: Callable[..., Any], lambda_name: str) -> str:
        code = getattr(function, "__code__", None)
        if code is None or code.co_freevars:
            raise NotPortable(f"{function.__name__} uses variables of the function around it")
        text, node = _definition(function)
        name = getattr(node, "name", lambda_name)
        if self._is_new(name, function):
            for used in _free_names(node):
                self._add_used(used, function)
            self.texts[name] = text if name == function.__name__ else f"{name} = {text}"
        return name

    def _is_new(self, name: str, value: Any) -> bool:
        if name in self._reserved or self._objects.setdefault(name, value) is not value:
            raise NotPortable(f"{name} is the name of another part of the file: rename it")
        return name not in self.texts

    def _add_used(self, name: str, user: Callable[..., Any]) -> None:
        value = user.__globals__.get(name, builtins)
        if _is_there(name, value):
            return
        value = inspect.unwrap(value) if callable(value) else value
        homes = (user.__module__, *(m for m in sys.modules if m.startswith("mlx_attn.attention.")))
        if isinstance(value, FunctionType) and value.__module__ in homes:
            if self._add(value, name) != name:
                raise NotPortable(f"{name} is another name of {value.__name__}: use that one")
        elif isinstance(value, Choice) and self._is_new(name, value):
            apply = self._add(inspect.unwrap(value.apply), name)
            self.texts[name] = f"{name} = SimpleNamespace(apply={apply})"
        elif isinstance(value, int | float | str | tuple) and self._is_new(name, value):
            self.texts[name] = f"{name} = {value!r}"
        elif name not in self.texts:
            home = getattr(value, "__module__", "") or type(value).__name__
            raise NotPortable(f"{user.__name__} uses {name} of {home}, which does not ship")

    @property
    def operations(self) -> set[str]:
        """The operations of MLX ("mx.exp") and of its arrays (".sum") in the source."""
        operations: set[str] = set()
        for part in (part for text in self.texts.values() for part in _computing(ast.parse(text))):
            if isinstance(part, ast.Attribute):
                base = part.value.id if isinstance(part.value, ast.Name) else ""
                if base in _MODULES.values():
                    operations.add(f"{base}.{part.attr}")
                elif hasattr(mx.array, part.attr):
                    operations.add(f".{part.attr}")
        return {name for name in operations if not name.startswith("math.")}

    def torch_obstacle(self) -> str:
        """Name the operations that PyTorch lacks; return "" if the same source runs there."""
        foreign = sorted(self.operations - TORCH_OPERATIONS.keys() - _TORCH_METHODS)
        return f"PyTorch has no {', '.join(foreign)} of the same meaning" if foreign else ""


def _is_there(name: str, value: Any) -> bool:
    """Return True if an exported file defines a name: from Python, MLX or `portable`."""
    if isinstance(value, ModuleType):
        return hasattr(value, name) if value is builtins else _MODULES.get(value.__name__) == name
    is_provided = isinstance(value, FunctionType) and value in _PROVIDED
    return is_provided and value.__name__ == name


@cache
def _parsed(file: str) -> tuple[str, ast.Module]:
    text = "".join(linecache.getlines(file))
    return text, ast.parse(text)


def _definition(function: Callable[..., Any]) -> tuple[str, ast.FunctionDef | ast.Lambda]:
    """Return the source of a function without decorators, and its syntax."""
    code = function.__code__
    text, tree = _parsed(code.co_filename)
    arguments = list(code.co_varnames[: code.co_argcount])
    definitions: list[ast.FunctionDef | ast.Lambda] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            lines = [part.lineno for part in (node, *getattr(node, "decorator_list", ()))]
            own_arguments = [argument.arg for argument in node.args.args]
            if min(lines) == code.co_firstlineno and own_arguments == arguments:
                definitions.append(node)
    if len(definitions) != 1:
        raise NotPortable(f"{function.__name__} cannot be found in {code.co_filename}: write a def")
    source = ast.get_source_segment(text, definitions[0], padded=True) or ""
    return textwrap.dedent(source).strip(), definitions[0]


def _free_names(node: ast.AST) -> list[str]:
    """Return the names that a function reads and does not define."""
    names = [part for part in _computing(node) if isinstance(part, ast.Name)]
    bound = {name.id for name in names if isinstance(name.ctx, ast.Store)}
    bound |= {part.arg for part in ast.walk(node) if isinstance(part, ast.arg)}
    bound |= {part.name for part in ast.walk(node) if isinstance(part, ast.FunctionDef)}
    return list(dict.fromkeys(name.id for name in names if name.id not in bound))


def _computing(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a function that run, without decorators and annotations."""
    yield node
    for key, value in ast.iter_fields(node):
        if key not in ("decorator_list", "annotation", "returns"):
            for part in value if isinstance(value, list) else [value]:
                if isinstance(part, ast.AST):
                    yield from _computing(part)
