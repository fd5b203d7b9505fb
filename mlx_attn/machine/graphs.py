"""Functions of arrays as graphs of operations: with a gradient of their own, or without Python.

MLX compiles for a Linux processor with `g++`, which takes half a second for every chain of
operations that it joins, once on a machine, and which not every machine has. For an NVIDIA GPU a
chain takes two or three seconds, for a Mac's GPU milliseconds.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx

from mlx_attn.errors import RunError
from mlx_attn.files import make_directory
from mlx_attn.machine.device import compiles_slowly, device_name, on_linux_cpu
from mlx_attn.machine.folders import user_directory

_traces: ContextVar[bool] = ContextVar("traces", default=False)
"""Whether a function is traced for a `Graph`, in this thread."""


def has_gradients() -> bool:
    """Return False while a function is traced for a graph, which cannot hold gradients."""
    return not _traces.get()


class Differentiable:
    """A function with a gradient of its own, which a `Graph` leaves out."""

    def __init__(self, function: Callable[..., Any]):
        self._function = function
        self._with_gradient = mx.custom_function(function)

    def vjp(self, gradient: Callable[..., Any]) -> Callable[..., Any]:
        """Register its gradient, like `vjp` of MLX's `custom_function`."""
        return self._with_gradient.vjp(gradient)

    def __call__(self, *arguments: Any) -> Any:
        """Compute the function."""
        return (self._function if _traces.get() else self._with_gradient)(*arguments)


HOT = 500  # runs after which a graph is compiled


class Graph:
    """A function of arrays, as a graph of operations that runs without Python.

    On a Mac it is compiled at once. Where compiling is slow it would take longer than most texts
    take, so the graph stays uncompiled until it has run often, and always without a compiler.

    Args:
        function: Takes and returns arrays; it is never differentiated.
        like: Arrays of the shapes and types that it will be called with.
        runs: Counts its runs; shared by graphs that need the same code, so that all are compiled
            with the first.
    """

    def __init__(
        self,
        function: Callable[..., list[mx.array]],
        like: Sequence[mx.array],
        runs: Iterator[int],
    ):
        self._function, self._runs = without_gradients(function), runs
        self._waits = compiles_slowly() and not lacks_compiler()  # to be compiled
        self._run = self._exported(like) if compiles_slowly() else compiled(self._function)

    def __call__(self, *arrays: mx.array) -> Sequence[mx.array]:
        """Run the graph and return the function's results."""
        is_hot = next(self._runs) >= HOT
        if self._waits and is_hot:
            self._run, self._waits = compiled(self._function), False
        return self._run(*arrays)

    def _exported(self, like: Sequence[mx.array]) -> Callable[..., Any]:
        """Return the function as MLX exports and reads it back, or another form of it."""
        try:
            with tempfile.TemporaryDirectory() as directory:
                file = str(Path(directory, "function.mlxfn"))
                mx.export_function(file, self._function, *like)
                read: Any = mx.import_function(file)
                mx.eval(read(*like))
                return read
        except ValueError:  # an operation without a form on disk, as in a user's own gradient
            return compiled(self._function)
        except (OSError, RuntimeError):  # a full disk, or MLX reads it onto another thread's stream
            return self._function


def without_gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function without the gradients of its own parts, which no graph can hold.

    Example:
        >>> mx.export_function("model.mlxfn", without_gradients(model), tokens)
    """

    def traced(*arrays: mx.array) -> Any:
        before = _traces.set(True)
        try:
            return function(*arrays)
        finally:
            _traces.reset(before)

    return traced


FEW = 4096  # with fewer numbers, an operation takes less time than starting it


def is_compiled(x: mx.array) -> bool:
    """Return True to compile: few numbers, so starting an operation costs more than doing it.

    Compiled reductions of an axis of one number end the process in mlx 0.32.4.
    """
    few = x.size < FEW and x.dtype != mx.float64 and x.shape[-1:] != (1,)
    return few and on_linux_cpu() and (has_compiler() or _traces.get())


def _finds_folder() -> bool:
    """Let TMPDIR, to which MLX writes compiled code, name a folder that no other user has made."""
    if _is_writable(Path(os.environ.get("TMPDIR") or "/tmp")):
        return True
    with suppress(RunError):
        make_directory(own := user_directory("cache"))
        os.environ["TMPDIR"] = str(own)
        return _is_writable(own)
    return False


def _is_writable(folder: Path) -> bool:
    return all(os.access(each, os.W_OK) for each in (folder, *folder.glob("mlx/**/")))


@cache
def has_compiler() -> bool:
    """Return True if g++ can be started, and has a folder to write to.

    On a Mac without Apple's command line tools, g++ only opens a window to install them, so this
    function starts `xcode-select -p` instead, which fails without them.
    """
    if not shutil.which("g++") or not _finds_folder():
        return False
    if sys.platform != "darwin":
        return True
    return subprocess.run(["xcode-select", "-p"], capture_output=True, check=False).returncode == 0


def lacks_compiler() -> bool:
    """Return True if nothing can be compiled: on a processor without g++."""
    return device_name() == "cpu" and not has_compiler()


def compiled(function: Callable, **options: Any) -> Callable:
    """Return the function compiled by MLX, or as it is without a compiler."""
    return function if lacks_compiler() else mx.compile(function, **options)
