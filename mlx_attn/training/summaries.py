"""Summaries of runs for a list, without loading the models."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

from mlx_attn.arrays import check_whole
from mlx_attn.errors import RunError
from mlx_attn.run_directory import Run, find_runs, open_run
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
    ended: bool = False  # whether its training has ended
    interrupted: bool = False  # whether Ctrl-C ended it
    val_loss: float | None = None  # lowest validation loss, in nats per token
    bits_per_byte: float | None = None  # the same validation's bits per byte
    problem: str = ""  # why the run cannot be used, in one line

    @property
    def is_unfinished(self) -> bool:
        """Return whether its training was cut off, interrupted, or still continues."""
        return not self.problem and (self.interrupted or not self.ended)


def summarise_runs(directory: Path = RUNS) -> list[RunSummary]:
    """Return the runs in a directory, latest first; damaged ones have a `problem`."""
    return [_summary(path, str(path.relative_to(directory))) for path in find_runs(directory)]


def _summary(path: Path, name: str) -> RunSummary:
    states = dict(_states(path))
    # Pages are written by `open` and `probe`, so they do not show when the run was trained.
    changed = max((s.st_mtime for f, s in states.items() if f.suffix != ".html"), default=0.0)
    summary = RunSummary(name, path, changed, sum(state.st_size for state in states.values()))
    try:
        run = open_run(path)
        summary = replace(summary, **_settings(run))
        summary = replace(summary, **_progress(run.metrics()))
        if not run.weights.exists():
            return replace(summary, problem="no weights yet: its training came to no validation")
        check_whole(run.weights)
        # The checks come last: their RunError keeps the facts that were read before it.
        run.load_tokenizer()
    except RunError as error:
        return replace(summary, problem=str(error))
    return summary


def _states(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the files below a directory; skip files that disappear during a training."""
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
    """Return the steps of a training, its end, and its lowest validation loss."""
    last = reports[-1] if reports else {}
    # metrics.jsonl may have been cut off or edited: only values of the right type count.
    validations = [r for r in reports if isinstance(r.get("val_loss"), float)]
    best = min(validations, key=lambda report: report["val_loss"], default={})
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


def _changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return the settings that differ between two models, except those implied by `n_heads`."""
    changed = {key: value for key, value in after.items() if before.get(key) != value}
    # The sizes that follow from `n_heads` are not changes of their own.
    if "n_heads" in changed and after["head_dim"] * after["n_heads"] == after["emb_dim"]:
        changed = {key: value for key, value in changed.items() if key not in _FROM_HEADS}
    return [f"{key}={value}" for key, value in changed.items()]


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A finished run to compare with another one that differs in attention or seed."""

    run: Run  # the finished run
    difference: float  # the other run's loss minus this one's, in `unit`; positive is worse
    loss: float  # the loss of `run`, in `unit`
    unit: str  # "bits per byte" or "nats per token"
    question: str  # options of `compare` that test which is better; "" if only the seed differs


_SIZES = ("vocab_size", "context_length", "emb_dim", "n_layers", "hidden_dim")
_FROM_HEADS = ("head_dim", "value_dim", "n_kv_heads", "scale")
_FREE = ("seed", "eval_every", "save_every", "log_every", "track")


def neighbour_of(run: Run) -> Neighbour | None:
    """Return the run in the same directory that is best to compare with.

    It is finished and has the same text, sizes and recipe. The standard form with the same seed
    comes first, then the same model with another seed, then another form; of several, the latest.
    """
    candidates = [other for path in find_runs(run.path.parent) if (other := _twin(run, path))]
    own = run.best_validation()

    # `min` picks the first of equals, so the latest run wins among equally good ones.
    def rank(other: Run) -> tuple[bool, bool, bool]:
        is_same = other.settings["model"] == run.settings["model"]
        is_same_seed = other.settings["training"].get("seed") == run.settings["training"].get(
            "seed"
        )
        is_standard = other.settings.get("variant") == "standard"
        return not is_standard, not (is_same or is_same_seed), not is_same_seed

    if not candidates or not own:
        return None
    other = min(candidates, key=rank)
    theirs = other.best_validation()
    # Bits per byte are comparable between tokenizers; a task has only nats per token.
    key = "val_loss" if None in (own.get("bits_per_byte"), theirs.get("bits_per_byte")) else ""
    key = key or "bits_per_byte"
    unit = "nats per token" if key == "val_loss" else "bits per byte"
    return Neighbour(other, own[key] - theirs[key], theirs[key], unit, _question(other, run))


def _question(control: Run, run: Run) -> str:
    """Return the options of `compare` for two runs' forms of attention."""
    models = [dict(each.settings["model"]) for each in (control, run)]
    if models[0] == models[1]:
        return ""
    forms = [str(each.settings.get("variant", "")) for each in (control, run)]
    parts = [f"--variants {','.join(forms)}"]
    # One variant with two settings: both arms have to be spelled out.
    if forms[0] == forms[1]:
        settings = ", ".join([forms[1], *_changes(*models)])
        parts = [f"--arm {quote(form)}" for form in (forms[0], settings)]
    parts.append(f"--preset {control.settings.get('preset', 'tiny')}")
    data = str(control.settings["text"].get("data", ""))
    return " ".join(parts + ([f"--data {quote(data)}"] if data not in ("", "tales") else []))


def _twin(run: Run, path: Path) -> Run | None:
    """Return the run at a path if it is finished and differs from `run` in attention or seed."""
    if path == run.path:
        return None
    try:
        other = open_run(path)
        is_twin = _comparable(run) == _comparable(other) and other.is_finished()
        return other if is_twin and other.best_validation() else None
    except RunError:
        return None


def _comparable(run: Run) -> tuple[Any, ...]:
    """Return the settings that two runs must share for their losses to be comparable."""
    # Settings in `_FREE` change only measurements and random numbers.
    training = {k: v for k, v in run.settings["training"].items() if k not in _FREE}
    sizes = [run.settings["model"].get(key) for key in _SIZES]
    text = run.settings.get("digest"), run.settings["text"].get("tokenizer")
    return text, sizes, training, run.settings.get("init_from")
