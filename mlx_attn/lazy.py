"""Packages whose heavy names are imported when they are first used, so that `--help` is quick."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's `__getattr__` (PEP 562).

    Args:
        package: The package's `__name__`.
        places: For each name, the module of the package that holds it.
    """

    def find(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        return getattr(import_module(f"{package}.{places[name]}"), name)

    return find
