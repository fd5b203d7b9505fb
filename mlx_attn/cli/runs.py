"""`mlx-attn runs`: list the trained runs, and remove old ones."""

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlx_attn.cli.options import Named, UserPath
from mlx_attn.cli.output import emit, note, say
from mlx_attn.cli.sample import complete_run
from mlx_attn.errors import RunError, find_row, plural

if TYPE_CHECKING:
    from mlx_attn.runs import RunSummary

_EXAMPLES = """\b
Examples:
  mlx-attn runs
  mlx-attn runs --sort loss
  mlx-attn runs experiments/ --json
  mlx-attn runs rm tiny-standard-2 tiny-standard-3
"""

# Losses of different texts cannot be compared, so each text has its own ranking.
_SORT_KEYS: dict[str, Callable[["RunSummary"], Any]] = {
    "age": lambda run: -run.changed,
    "name": lambda run: run.name,
    "variant": lambda run: (run.variant, -run.changed),
    "text": lambda run: (run.text, -run.changed),
    "loss": lambda run: (run.text, run.digest, run.val_loss is None, run.val_loss or 0.0),
    "params": lambda run: run.parameters or 0,
    "steps": lambda run: -run.steps,
    "size": lambda run: -run.n_bytes,
}


class _ListByDefault(click.Group):
    """A group whose command `list` runs if the first argument names no other command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in {*self.commands, "--help", "-h"}:
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_ListByDefault, epilog=_EXAMPLES)
def command() -> None:
    """List the trained runs: 'mlx-attn runs [DIRECTORY]'. Or remove some.

    Each run with its lowest validation loss, variant, text, seed, trained parameters, steps, bytes
    on the disk, and how long ago it changed. A run that cannot be used shows the reason. --sort KEY
    sorts them, and --json prints one JSON object: see 'mlx-attn runs list --help'.
    """


@command.command("list", epilog=_EXAMPLES)
@click.argument("directory", required=False, type=UserPath())
@click.option(
    "--sort",
    type=Named(_SORT_KEYS),
    default="age",
    show_default=True,
    metavar="KEY",
    help=", ".join(_SORT_KEYS) + "; losses within one text",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def list_runs(directory: Path | None, sort: str, as_json: bool) -> None:
    """List the runs in DIRECTORY; without it, those in runs/. The latest first.

    Below them stands each ledger of ideas there: see --ideas of 'mlx-attn compare --help-all'.
    """
    from mlx_attn.comparison.ideas import ledgers_in
    from mlx_attn.runs import RUNS, summarise_runs
    from mlx_attn.ui.terminal import memory, print_rows, stdout_console

    key = find_row(_SORT_KEYS, sort, "key to sort by")
    if directory and not directory.is_dir():
        raise RunError(f"{directory}: there is no such directory")
    directory = directory or RUNS
    runs, ledgers = sorted(summarise_runs(directory), key=key), ledgers_in(directory)
    if as_json:
        emit({"runs": [asdict(run) for run in runs], "ideas": ledgers}, as_json)
    elif runs or ledgers:
        rows = [(run.name, facts_of(run)) for run in runs]
        print_rows([*rows, *ledgers.items()], stdout_console())
        total = memory(sum(run.n_bytes for run in runs))
        if runs:
            note(f"{plural(len(runs), 'run')}, {total}; mlx-attn runs rm NAME removes one")
    else:
        note(f"there is no run in {directory}: train one with 'mlx-attn train', about a minute")


@command.command("rm")
@click.argument("names", nargs=-1, required=True, shell_complete=complete_run)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def remove(names: tuple[str, ...], yes: bool) -> None:
    """Remove runs: a name in runs/ or a directory for each.

    Only a run's own files go. What else lies in its directory stays, and so does the directory.
    """
    from mlx_attn.runs import remove_run, run_path
    from mlx_attn.ui.terminal import memory

    paths = list(dict.fromkeys(map(run_path, names)))
    for path in paths:
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        note(f"{path}  {memory(size)}")
    question = f"Remove {plural(len(paths), 'run')}?"
    if not yes and not click.confirm(question, err=True):
        raise click.exceptions.Exit(1)
    for path in paths:
        others = remove_run(path)
        rest = f"; {', '.join(file.name for file in others)} stays there" if others else ""
        say(f"removed {path}{rest}")


def facts_of(run: "RunSummary") -> str:
    """Return the facts of a run in one line, or the reason why it cannot be used."""
    from mlx_attn.text.sources import describe
    from mlx_attn.ui.terminal import age, count, memory

    if run.problem:
        return run.problem
    facts = [run.variant]
    if run.bits_per_byte is not None:
        facts.insert(0, f"{run.bits_per_byte:.4f} bits per byte")
    elif run.val_loss is not None:
        facts.insert(0, f"{run.val_loss:.4f} nats per token")
    if run.text:
        facts.append(describe(run.text))
    if run.seed is not None:
        facts.append(f"seed {run.seed}")
    if run.parameters is not None:
        facts.append(f"{count(run.parameters)} params")
    if run.steps:
        is_cut = not run.ended and run.planned > run.steps
        facts.append(plural(run.steps, "step") + (f" of {run.planned}" if is_cut else ""))
    return ", ".join([*facts, memory(run.n_bytes), f"{age(time.time() - run.changed)} ago"])
