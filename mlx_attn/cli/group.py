"""The `mlx-attn` group: finds commands by name, and turns expected failures into one line."""

import errno
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from mlx_attn import __version__
from mlx_attn.cli.interruption import INTERRUPTED
from mlx_attn.errors import ConfigError, RunError, nearest

COMMANDS: dict[str, str] = {
    "train": "Train a tiny GPT with any attention.",
    "sample": "Continue a prompt with a trained model.",
    "repl": "Talk to a trained model.",
    "variants": "Show what each variant computes and costs.",
    "convert": "Write a trained model in another form of attention, and measure the error.",
    "probe": "Show what each head looks at, and what its matrices are like.",
    "compare": "Say which form of attention is better, with error bars.",
    "claims": "Put what others say of attention to the test.",
    "report": "Show what a comparison found: a page, Markdown, figures.",
    "bench": "Measure speed, memory, and where the time goes.",
    "data": "Show, fetch and generate the texts to train on.",
    "info": "Show the machine, the versions and what is fast here.",
}
"""Every command and its one line of help; the module of the same name holds the command."""

NAME = "mlx-attn"
ALIASES = {"chat": "repl"}
CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
"""What writing to a standard stream fails with where that is a file on a full disk."""


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
            raise _WrongSetting(str(error)) from error
        except RunError as error:
            raise click.ClickException(str(error)) from error
        except BrokenPipeError:
            from mlx_attn.show.terminal import discard_unread

            # The reader of a pipe, such as `head`, is gone: nothing to say and nobody to hear it.
            discard_unread()
            ctx.exit(0)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise click.ClickException(f"the output cannot be written: {error}") from error

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run the command line and exit; an error is one line, an interruption exits with 130."""
        if not standalone_mode:
            return super().main(*args, standalone_mode=False, **extra)
        try:
            code = super().main(*args, standalone_mode=False, **extra)
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            sys.exit(error.exit_code)
        except click.ClickException as error:
            click.echo(_line_about(error), err=True)
            sys.exit(error.exit_code)
        except click.Abort:
            sys.exit(INTERRUPTED)
        sys.exit(code if isinstance(code, int) else 0)


def _line_about(error: click.ClickException) -> str:
    """An error in one line; after wrong usage, where to read more."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    more = f" (see '{context.command_path} --help')" if context else ""
    return f"Error: {' '.join(error.format_message().split()).rstrip('.')}{more}"


@click.group(NAME, cls=LazyGroup, context_settings=CONTEXT, no_args_is_help=True)
@click.version_option(__version__, "-V", "--version", message=f"{NAME} %(version)s")
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
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that cannot show a character shows a question mark instead.
        sys.stdout.reconfigure(errors="replace")
    group.main(arguments, prog_name=NAME)
