"""Runs in a list: what can be said of each without loading its model."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mlx_attn.arrays import check_whole
from mlx_attn.errors import RunError
from mlx_attn.run_directory import RUNS, Run, find_runs, open_run


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run in a list of runs.

    Attributes:
        name: As in `run_names`.
        path: Where it lies.
        changed: When a file of it but a page last changed, in seconds since 1970.
        n_bytes: Bytes of all its files.
        variant: Its form of attention.
        text: The text that it was trained on, by name; "" if that is not recorded.
        digest: What tells that text from another of its name.
        seed: Of its batches and its start.
        parameters: Trained numbers.
        steps: Done at its last report.
        planned: Steps that its training was to take; 0 if another bound ends it.
        ended: Whether its training came to an end.
        interrupted: Whether that end was Ctrl-C.
        val_loss: The lowest, in nats per token.
        bits_per_byte: At that validation.
        problem: Why it cannot be used, in one line.
    """

    name: str
    path: Path
    changed: float
    n_bytes: int
    variant: str = ""
    text: str = ""
    digest: str = ""
    seed: int | None = None
    parameters: int | None = None
    steps: int = 0
    planned: int = 0
    ended: bool = False
    interrupted: bool = False
    val_loss: float | None = None
    bits_per_byte: float | None = None
    problem: str = ""

    @property
    def is_unfinished(self) -> bool:
        """Whether its training was cut off, interrupted, or goes on."""
        return not self.problem and (self.interrupted or not self.ended)


def summarise_runs(directory: Path = RUNS) -> list[RunSummary]:
    """Return the runs in a directory, the latest first; damaged ones say what is wrong."""
    return [_summary(path, str(path.relative_to(directory))) for path in find_runs(directory)]


def _summary(path: Path, name: str) -> RunSummary:
    states = dict(_states(path))
    changed = max((s.st_mtime for f, s in states.items() if f.suffix != ".html"), default=0.0)
    known = RunSummary(name, path, changed, sum(state.st_size for state in states.values()))
    try:
        run = open_run(path)
        known = replace(known, **_settings(run))
        known = replace(known, **_progress(run.metrics()))
        if not run.weights.exists():
            return replace(known, problem="no weights yet: its training came to no validation")
        check_whole(run.weights)
        run.load_tokenizer()
    except RunError as error:
        return replace(known, problem=str(error))
    return known


def _states(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the files below a directory but those that go while a training writes."""
    for file in path.rglob("*"):
        with suppress(OSError):
            if file.is_file():
                yield file, file.stat()


def _settings(run: Run) -> dict[str, Any]:
    settings, seed = run.settings, run.settings["training"].get("seed")
    return {
        "variant": str(settings.get("variant", "custom")),
        "text": str(settings.get("corpus", "")),
        "digest": str(settings.get("digest", "")),
        "seed": seed if isinstance(seed, int) else None,
    }


def _progress(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how far a training came, and its lowest validation loss."""
    last = reports[-1] if reports else {}
    found = [r for r in reports if isinstance(r.get("val_loss"), float)]
    best = min(found, key=lambda report: report["val_loss"], default={})
    return {
        "parameters": _latest(reports, "params"),
        "steps": max((r["step"] for r in reports if isinstance(r.get("step"), int)), default=0),
        "planned": _latest([r for r in reports if r.get("event") == "step"], "steps") or 0,
        "ended": last.get("event") == "end",
        "interrupted": last.get("reason") == "interrupted",
        "val_loss": best.get("val_loss"),
        "bits_per_byte": best.get("bits_per_byte"),
    }


def _latest(reports: list[dict[str, Any]], key: str) -> int | None:
    return next((r[key] for r in reversed(reports) if isinstance(r.get(key), int)), None)
