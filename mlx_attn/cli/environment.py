"""The environment as settings: MLX_ATTN_ and a key's name. A name nobody knows is refused."""

import difflib
import importlib
import os
from collections.abc import Iterator

import click

from mlx_attn import blas
from mlx_attn.cli.group import COMMANDS
from mlx_attn.cli.options import PREFIX
from mlx_attn.cli.ranks import TIMEOUT
from mlx_attn.errors import ConfigError

OTHERS = {blas.SWITCH, "MLX_ATTN_DATA_DIR", "MLX_ATTN_WORKERS", TIMEOUT}
"""Variables that are no option of a command."""


def check_environment() -> None:
    """Refuse misspelt variables: a setting that is silently ignored is worse than none.

    Raises:
        ConfigError: A variable with our prefix is none that a command reads.
    """
    modules = (importlib.import_module(f"mlx_attn.cli.{name}") for name in COMMANDS)
    known = OTHERS.union(*(_variables(module.command) for module in modules))
    for name in sorted(os.environ):
        if name.startswith(PREFIX) and name not in known:
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
            hint = f": did you mean {close[0]}?" if close else ": unset it"
            raise ConfigError(f"unknown environment variable {name}{hint}")


def _variables(command: click.Command) -> Iterator[str]:
    for parameter in command.params:
        if isinstance(parameter.envvar, str):
            yield parameter.envvar
    if isinstance(command, click.Group):
        for child in command.commands.values():
            yield from _variables(child)
