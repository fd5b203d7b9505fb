"""Summaries of runs for a list, without loading the models."""

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mlx_attn.errors import RunError
from mlx_attn.run_directory import Run, best_of, find_runs, has_ended, open_run
from mlx_attn.runs import RUNS


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run in a list of runs."""

    name: str  # as in `run_names`
    path: Path  # the run directory
    changed: float  # when one of its files other than pages last changed, in seconds since 1970
    n_bytes: int  # total size of its files
    variant: str = ""  # name of the attention variant
    text: str = ""  # name of its training text; "" if not recorded
    digest: str = ""  # identifies that text among texts of the same name
    seed: int | None = None  # seed of its batches and weights
    parameters: int | None = None  # trained numbers
    steps: int = 0  # steps done at its last report
    planned: int = 0  # planned steps; 0 if another bound ends the training
    ended: bool = True  # whether its training came to its end; there may have been none
    val_loss: float | None = None  # lowest validation loss, in nats per token
    bits_per_byte: float | None = None  # the same validation's bits per byte
    problem: str = ""  # why the run cannot be used, in one line

    @property
    def is_unfinished(self) -> bool:
        """Return whether its training was cut off, interrupted, or still continues."""
        return not self.problem and not self.ended


def summarise_runs(directory: Path = RUNS) -> list[RunSummary]:
    """Return the runs in a directory, latest first; damaged ones have a `problem`."""
    return [_summary(path) for path in find_runs(directory)]


def _summary(path: Path) -> RunSummary:
    changed, n_bytes = 0.0, 0
    for file in filter(Path.is_file, path.rglob("*")):
        with suppress(OSError):  # files disappear during a training
            state = file.stat()
            n_bytes += state.st_size
            # Pages are written by `open`, not by a training.
            changed = changed if file.suffix == ".html" else max(changed, state.st_mtime)
    summary = RunSummary(path.name, path, changed, n_bytes)
    try:
        run = open_run(path)
        seed = run.settings["training"].get("seed")
        summary = replace(
            summary,
            variant=str(run.settings.get("variant", "custom")),
            text=str(run.settings.get("corpus", "")),
            digest=str(run.settings.get("digest", "")),
            seed=seed if isinstance(seed, int) else None,
        )
        summary = replace(summary, **(_progress(run) or _made(run)))
        if not run.weights.exists():
            return replace(summary, problem="no weights yet: its training came to no validation")
        # The checks come last: their RunError keeps the facts that were read before it.
        run.load_tokenizer()
    except RunError as error:
        return replace(summary, problem=str(error))
    return summary


def _progress(run: Run) -> dict[str, Any]:
    """Return the steps of a training, its end, and its lowest validation loss."""
    reports = run.metrics()
    if not reports:
        return {}
    last, best = reports[-1], best_of(reports)
    counted = [report["params"] for report in reports if isinstance(report.get("params"), int)]
    planned = [report.get("steps", 0) for report in reports if report.get("event") == "step"]
    return {
        "parameters": counted[-1] if counted else None,
        # Only the last report has the step at which a training was stopped.
        "steps": max(
            last["steps"] if last.get("event") == "end" else 0,
            *(report["step"] for report in reports if "step" in report),
        ),
        "planned": planned[-1] if planned else 0,
        "ended": has_ended(reports),
        "val_loss": best.get("val_loss"),
        "bits_per_byte": best.get("bits_per_byte"),
    }


def _made(run: Run) -> dict[str, Any]:
    """Return the size and loss of a run that was converted or imported and not trained since."""
    facts = run.settings.get("converted") or run.settings.get("imported")
    if not isinstance(facts, dict):
        return {}
    loss = {key: facts.get(key) for key in ("val_loss", "bits_per_byte")}
    return {"parameters": facts.get("params"), **loss}
