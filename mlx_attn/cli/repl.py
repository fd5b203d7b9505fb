"""`mlx-attn repl`: talk to a trained model, at a terminal or through a pipe."""

import io
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from mlx_attn.cli.sample import INTERRUPTED, run_argument, sampling_options

if TYPE_CHECKING:
    from mlx_attn.sampling import Voice
    from mlx_attn.show.repl.settings import Settings


_EXAMPLES = """\b
Examples:
  mlx-attn repl runs/nano --temp 0.5
  printf 'Once upon a time\\n/retry\\n' | mlx-attn repl
"""


@click.command(epilog=_EXAMPLES)
@run_argument
@sampling_options
@click.pass_context
def command(
    ctx: click.Context, run: str | None, max_tokens: int, stop: tuple[str, ...], **sampler: Any
) -> None:
    """Talk to a trained model: it goes on from any text; /help shows the commands.

    RUN is a directory or a name in runs/; without it, the latest there. Where stdin or stdout is no
    terminal, each line of stdin is a prompt or a command, and the answers alone go to stdout.
    """
    try:
        from mlx_attn.sampling import SamplerConfig, open_voice
        from mlx_attn.show.repl.settings import Settings

        settings = Settings(sampler=SamplerConfig(**sampler), max_tokens=max_tokens, stop=stop)
        at_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        (_at_terminal if at_terminal else _in_pipe)(open_voice(run), settings)
    except KeyboardInterrupt:
        ctx.exit(INTERRUPTED)


def _at_terminal(voice: "Voice", settings: "Settings") -> None:
    from mlx_attn.sampling import open_voice
    from mlx_attn.show.repl.commands import greet
    from mlx_attn.show.repl.loops import converse
    from mlx_attn.show.repl.prompt import Prompt, open_history
    from mlx_attn.show.repl.screen import terminal_screen
    from mlx_attn.show.repl.session import Session

    session = Session(voice, terminal_screen(), open_voice, settings)
    greet(session)
    converse(session, Prompt(session.screen.note, open_history()).read)


def _in_pipe(voice: "Voice", settings: "Settings") -> None:
    from mlx_attn.sampling import open_voice
    from mlx_attn.show.repl.loops import read_lines
    from mlx_attn.show.repl.screen import PlainScreen
    from mlx_attn.show.repl.session import Session

    screen = PlainScreen(partial(click.echo, nl=False), partial(click.echo, nl=False, err=True))
    session = Session(voice, screen, open_voice, settings)
    # Bytes that are not UTF-8 become what the tokenizer refuses by name.
    read_lines(session, io.TextIOWrapper(sys.stdin.buffer, "utf-8", "surrogateescape"))
