"""`mlx-attn runs`: what was trained here, and how good it is."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mlx_attn.cli.main import say
from mlx_attn.cli.options import UserPath
from mlx_attn.errors import plural

if TYPE_CHECKING:
    from mlx_attn.training.summaries import RunSummary

_EXAMPLES = """\b
Examples:
  mlx-attn runs
  mlx-attn runs experiments/ --json
"""


@click.command(epilog=_EXAMPLES)
@click.argument("directory", required=False, type=UserPath())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(directory: Path | None, as_json: bool) -> None:
    """List the runs in DIRECTORY, the latest first; without it, those in runs/.

    Each with its variant, its lowest validation loss, its steps, its size on the disk and how long
    ago it changed. A run that cannot be used says why.
    """
    from mlx_attn.errors import RunError
    from mlx_attn.run_directory import RUNS
    from mlx_attn.training.summaries import summarise_runs
    from mlx_attn.ui.terminal import print_rows, stdout_console

    if directory and not directory.is_dir():
        raise RunError(f"{directory}: there is no such directory")
    directory = directory or RUNS
    found = summarise_runs(directory)
    if as_json:
        records = [{**asdict(each), "path": str(each.path)} for each in found]
        say(json.dumps({"runs": records}))
    elif found:
        console = stdout_console()
        print_rows(run_rows(found, console.width), console)
    else:
        say(f"there is no run in {directory}: {HOW_TO_BEGIN}", err=True)


HOW_TO_BEGIN = "train one with 'mlx-attn train', about a minute"


def run_rows(found: "Sequence[RunSummary]", width: int) -> list[tuple[str, str]]:
    """Names of runs and what is known of each: in columns where that fits into `width`."""
    cells = {each.name: _cells(each) for each in found if not each.problem}
    widths = [max(map(len, column)) for column in zip(*cells.values(), strict=True)]
    names = max((len(each.name) for each in found), default=0)
    in_columns = names + 2 + sum(widths) + 2 * (len(widths) - 1) <= width

    def line(name: str) -> str:
        if not in_columns:
            return ", ".join(cell for cell in cells[name] if cell != "-")
        padded = (f"{cell:{size}}" for cell, size in zip(cells[name], widths, strict=True))
        return "  ".join(padded).rstrip()

    return [(each.name, each.problem or line(each.name)) for each in found]


def _cells(run: "RunSummary") -> tuple[str, ...]:
    from mlx_attn.ui.terminal import age, memory

    loss = "-"
    if run.bits_per_byte is not None:
        loss = f"{run.bits_per_byte:.4f} bits per byte"
    elif run.val_loss is not None:
        loss = f"{run.val_loss:.4f} nats per token"
    steps = plural(run.steps, "step") + ("" if run.ended else " so far") if run.steps else "-"
    return run.variant, loss, steps, memory(run.n_bytes), f"{age(time.time() - run.changed)} ago"
