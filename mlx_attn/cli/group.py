"""The `mlx-attn` group: finds commands by name, and turns expected failures into one line."""

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from mlx_attn import __version__
from mlx_attn.errors import ConfigError, RunError, nearest

COMMANDS: dict[str, str] = {
    "train": "Train a tiny GPT with any attention.",
    "sample": "Continue a prompt with a trained model.",
    "repl": "Talk to a trained model.",
    "variants": "Show what each variant computes and costs.",
    "data": "Show, fetch and generate the texts to train on.",
    "info": "Show the machine, the versions and what is fast here.",
}
"""Every command and its one line of help; the module of the same name holds the command."""

ALIASES = {"chat": "repl"}
CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class _WrongSetting(click.ClickException):
    """A setting that cannot work, in one line."""

    exit_code = 2


class LazyGroup(click.Group):
    """A group whose commands are imported when they run, so that `--help` is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Command names, in the order a newcomer meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, imported now."""
        name = ALIASES.get(cmd_name, cmd_name)
        if name not in COMMANDS:
            return None
        return importlib.import_module(f"mlx_attn.cli.{name}").command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command the arguments name, or the nearest name in the error."""
        name = ALIASES.get(args[0], args[0])
        if name not in COMMANDS and not name.startswith("-"):
            raise click.UsageError(f"unknown command '{args[0]}'{nearest(name, COMMANDS)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands' lines of help, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; the library's two errors become one line and an exit code."""
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            raise _WrongSetting(_one_line(error)) from error
        except RunError as error:
            raise click.ClickException(_one_line(error)) from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


@click.group(cls=LazyGroup, context_settings=CONTEXT, no_args_is_help=True)
@click.version_option(__version__, "-V", "--version", message="mlx-attn %(version)s")
@click.pass_context
def group(ctx: click.Context) -> None:
    """An attention laboratory: train a tiny GPT while one part of its attention is changed."""
    if os.environ.get("NO_COLOR"):
        ctx.color = False


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit.

    Args:
        arguments: What follows the program's name; None reads it from the process.
    """
    try:
        group.main(arguments, prog_name="mlx-attn", standalone_mode=True)
    except BrokenPipeError:
        # The reader of a pipe, such as `head`, is gone: nothing to say and nobody to say it to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
