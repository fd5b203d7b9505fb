"""`mlx-attn runs`: what was trained here, and how good it is."""

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click

from mlx_attn.cli.main import say
from mlx_attn.cli.options import UserPath
from mlx_attn.errors import plural

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


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run in a list of runs: what can be said without loading its model."""

    name: str  # as in `run_names`
    path: Path
    changed: float  # when a file of it but a page last changed, in seconds since 1970
    n_bytes: int  # of all its files
    variant: str = ""
    steps: int = 0  # done at its last report
    ended: bool = False  # whether its training came to an end
    val_loss: float | None = None  # the lowest, in nats per token
    bits_per_byte: float | None = None  # at that validation
    problem: str = ""  # why it cannot be used, in one line


def summarise_runs(directory: Path | None = None) -> list[RunSummary]:
    """The runs in a directory, the latest first; damaged ones say what is wrong with them."""
    from mlx_attn.run_directory import RUNS, find_runs

    directory = directory or RUNS
    return [_summary(path, str(path.relative_to(directory))) for path in find_runs(directory)]


def _summary(path: Path, name: str) -> RunSummary:
    from mlx_attn.arrays import check_whole
    from mlx_attn.errors import RunError
    from mlx_attn.run_directory import open_run

    states = dict(_states(path))
    changed = max((s.st_mtime for f, s in states.items() if f.suffix != ".html"), default=0.0)
    known = RunSummary(name, path, changed, sum(state.st_size for state in states.values()))
    try:
        run = open_run(path)
        known = replace(known, variant=str(run.settings.get("variant", "custom")))
        known = replace(known, **_progress(run.metrics()))
        if not run.weights.exists():
            return replace(known, problem="no weights yet: its training came to no validation")
        check_whole(run.weights)
        run.load_tokenizer()
    except RunError as error:
        return replace(known, problem=str(error))
    return known


def _states(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """The files below a directory; one that goes while a training writes is left out."""
    for file in path.rglob("*"):
        with suppress(OSError):
            if file.is_file():
                yield file, file.stat()


def _progress(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """How far a training came, and its lowest validation loss."""
    steps = [steps for report in reports if isinstance(steps := report.get("step"), int)]
    found = [r for r in reports if isinstance(r.get("val_loss"), float)]
    best = min(found, key=lambda report: report["val_loss"], default={})
    return {
        "steps": max(steps, default=0),
        "ended": bool(reports) and reports[-1].get("event") == "end",
        "val_loss": best.get("val_loss"),
        "bits_per_byte": best.get("bits_per_byte"),
    }


HOW_TO_BEGIN = "train one with 'mlx-attn train', about a minute"


def run_rows(found: Sequence[RunSummary], width: int) -> list[tuple[str, str]]:
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


def _cells(run: RunSummary) -> tuple[str, ...]:
    from mlx_attn.ui.terminal import age, memory

    loss = "-"
    if run.bits_per_byte is not None:
        loss = f"{run.bits_per_byte:.4f} bits per byte"
    elif run.val_loss is not None:
        loss = f"{run.val_loss:.4f} nats per token"
    steps = plural(run.steps, "step") + ("" if run.ended else " so far") if run.steps else "-"
    return run.variant, loss, steps, memory(run.n_bytes), f"{age(time.time() - run.changed)} ago"
