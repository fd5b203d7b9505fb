"""`mlx-attn repl`: talk to a trained model, at a terminal or through a pipe."""

import io
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from mlx_attn.cli.main import INTERRUPTED
from mlx_attn.cli.options import takes_plugins
from mlx_attn.cli.sample import run_argument, sampling_options

if TYPE_CHECKING:
    from mlx_attn.repl.session import Settings
    from mlx_attn.sampling.generate import LoadedRun

_EXAMPLES = """\b
Examples:
  mlx-attn repl runs/nano --temp 0.5
  printf 'Once upon a time\\n/retry\\n' | mlx-attn repl
"""


@takes_plugins
@click.command(epilog=_EXAMPLES)
@run_argument
@sampling_options
@click.pass_context
def command(
    ctx: click.Context, run: str | None, max_tokens: int, stop: tuple[str, ...], **sampler: Any
) -> None:
    """Talk to a trained model: it continues any text; /help lists the commands.

    RUN is a directory or a name in runs/; without it, the latest there. Where stdin or stdout is no
    terminal, each line of stdin is a prompt or a command, and the answers alone go to stdout.
    """
    try:
        from mlx_attn.repl.session import Settings
        from mlx_attn.sampling.generate import load_run

        settings = Settings(max_tokens=max_tokens, stop=stop, **sampler)
        at_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        (_at_terminal if at_terminal else _in_pipe)(load_run(run), settings)
    except KeyboardInterrupt:
        ctx.exit(INTERRUPTED)


def _at_terminal(run: "LoadedRun", settings: "Settings") -> None:
    from mlx_attn.repl import commands, screen
    from mlx_attn.repl.session import Session
    from mlx_attn.sampling.generate import load_run

    session = Session(run, screen.terminal_screen(), load_run, settings)
    commands.print_banner(session)
    prompt = screen.Prompt(session.screen.note, screen.open_history())
    screen.interactive_loop(session, prompt.read)


def _in_pipe(run: "LoadedRun", settings: "Settings") -> None:
    from mlx_attn.repl.screen import read_lines
    from mlx_attn.repl.session import Screen, Session
    from mlx_attn.sampling.generate import load_run

    echo = partial(click.echo, nl=False)
    session = Session(run, Screen(echo, partial(echo, err=True)), load_run, settings)
    # Bytes that are not UTF-8 become what the tokenizer refuses by name.
    read_lines(session, io.TextIOWrapper(sys.stdin.buffer, "utf-8", "surrogateescape"))
