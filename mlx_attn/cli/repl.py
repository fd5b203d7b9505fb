"""`mlx-attn repl`: talk to a trained model, at a terminal or through a pipe."""

import io
import sys
import webbrowser
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlx_attn.cli.options import given, takes_plugins
from mlx_attn.cli.sample import SAMPLING_OPTIONS, run_argument

if TYPE_CHECKING:
    from mlx_attn.runs import LoadedRun

_EXAMPLES = """\b
Examples:
  mlx-attn repl runs/tiny-standard --temp 0.5
  printf 'One rainy day\\n/retry\\n' | mlx-attn repl
"""


@takes_plugins
@click.command(params=[*SAMPLING_OPTIONS], epilog=_EXAMPLES)
@run_argument
def command(run: str | None, stop: tuple[str, ...], **settings: Any) -> None:
    """Talk to a trained model: it continues any text; /help lists the commands.

    RUN is a directory or a name in runs/; without it, the latest finished one. Where stdin or
    stdout is no terminal, each line of stdin is a prompt or a command, and only the answers go
    to stdout.
    """
    from mlx_attn.machine.folders import user_directory
    from mlx_attn.repl import commands, screen
    from mlx_attn.repl.session import Session, Settings
    from mlx_attn.runs import load_run
    from mlx_attn.sampling.generate import StreamingDetokenizer

    at_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    shown = screen.ConsoleScreen(at_terminal)
    make_page = partial(_make_page, at_terminal)
    session = Session(load_run(run), shown, _list_runs, make_page)
    StreamingDetokenizer(session.run.tokenizer, stop)  # refuses an empty stop text now
    session.settings = Settings(stop=stop, **given(settings))
    if at_terminal:
        commands.print_banner(session)
        hint, history = partial(shown.say, quiet=True), screen.open_history(user_directory("state"))
        read = screen.prompt_reader(hint, history)
        screen.interactive_loop(session, read)
    else:
        # Bytes that are not UTF-8 become characters that the tokenizer refuses by name.
        lines = io.TextIOWrapper(sys.stdin.buffer, "utf-8-sig", "surrogateescape")
        screen.read_lines(session, lines)


def _list_runs() -> list[tuple[str, str]]:
    from mlx_attn.cli.runs import facts_of
    from mlx_attn.runs import summarise_runs

    return [(run.name, facts_of(run)) for run in summarise_runs()]


def _make_page(in_browser: bool, runs: "list[LoadedRun]", text: str) -> Path:
    """Write the page of `mlx-attn open`, with this text; at a terminal, open it as that does."""
    from mlx_attn.explore.page import write_page

    path = write_page(runs, [text])
    if in_browser:
        webbrowser.open(path.resolve().as_uri())
    return path
