"""A worker's side of a trial: the order it gets, its checks, and the record it returns.

An order and its answer are JSON objects, passed by value: no folder is shared. A worker trains one
trial at a time, on one thread of a processor, so that a trial has the same bits wherever its
arithmetic is the same.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from mlx_attn import plugins
from mlx_attn.comparison.plan import Trial, corpus_of, training_versions
from mlx_attn.comparison.result import kind_of
from mlx_attn.comparison.trial import record_of, train_trial, write_object
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.files import write_text
from mlx_attn.machine import blas
from mlx_attn.machine.facts import machine_kind
from mlx_attn.machine.streams import single_stream
from mlx_attn.records import Object, as_record, read_record
from mlx_attn.text.downloads import data_directory
from mlx_attn.training.config import resolve
from mlx_attn.training.loop import never
from mlx_attn.verify.checks import QUICK, verify

ORDER_FILE, RECORD_FILE = ".trial.json", ".record.json"
"""What files of orders and of their records end with, after the digest: for any engine that can
run a command, such as a job array, GNU parallel, Ray or cron."""

_one_at_a_time = threading.Lock()
# MLX's state and the number of threads belong to the process, so trials take turns.
_cancelled: set[str] = set()


def order_for(trial: Trial) -> Object:
    """Return all that a worker needs to train a trial."""
    return {**asdict(trial), "digest": trial.digest, "versions": list(training_versions())}


def trial_from(order: Mapping[str, Any], load: bool = True) -> Trial:
    """Return the trial of an order, its plugins loaded; without `load` they must be loaded.

    Raises:
        RunError: The order cannot be read, or this machine would train another trial: a version, a
            plugin or the kind of device differs.
    """
    fields = {k: v for k, v in order.items() if k in Trial.__dataclass_fields__}
    trial = as_record(fields, Trial, "the trial")
    names = ("mlx_attn", "mlx", "device")
    versions = order.get("versions", ())
    for name, there, here in zip(names, versions, training_versions(), strict=True):
        if there != here:
            raise RunError(f"{name} is {here} here and {there} where the command was given")
    # Same versions, same digest: a difference means that the order was changed or misread.
    if trial.digest != order.get("digest"):
        raise RunError("the trial's digest differs here: it was written by another version")
    (plugins.load_recorded if load else plugins.check_loaded)(trial.plugins)
    return trial


@cache
def check_arithmetic() -> None:
    """Raise a RunError if this machine fails the quick part of `mlx-attn verify`."""
    wrong = [finding for finding in verify(QUICK) if not finding.is_right]
    if wrong:
        names = ", ".join(f"{finding.check.name} on the {finding.device}" for finding in wrong)
        raise RunError(f"verify finds wrong results: {names}")


def inspect_worker(orders: Iterable[Object], text: str | None = None) -> dict[str, str]:
    """Check all that trials need, before the first of them.

    Args:
        orders: One for each text and plugin.
        text: The training text, if this machine lacked it when it was asked before.

    Returns:
        "kind", the kind of this machine; or "unfit", why it cannot train these; or "lacks", why
        it has to be sent the text.
    """
    with _one_at_a_time:
        try:
            check_arithmetic()
            for order in orders:
                trial = trial_from(order)
                if text is not None:
                    # By digest: trials find it there whatever path their settings name.
                    write_text(place_of_text(trial.text), text)
                if reason := _lacks_text(trial):
                    # The engine answers "lacks" with the text; after that it is a fault.
                    return {"lacks" if text is None else "unfit": reason}
            return {"kind": kind_of(machine_kind())}
        except (RunError, ConfigError) as error:
            return {"unfit": str(error)}


def train_order(
    order: Object,
    run: str = "",
    check: bool = True,
    load: bool = True,
    should_stop: Callable[[], bool] = never,
) -> Object:
    """Train a trial.

    Args:
        order: Of `order_for`.
        run: Names the comparison, for `cancel`.
        check: Check this machine before its first trial.
        load: Import plugins here; else they must have been imported.
        should_stop: Called before every step.

    Returns:
        "training" or "diverged", what became of it, with the trial's digest; "stopped" if it was
        cancelled; "failed" or "unfit" with the reason.
    """
    with _one_at_a_time:
        # As for every other trial: another number of threads gives other roundings.
        blas.use_threads(1)
        fault = "unfit"
        try:
            if check:
                check_arithmetic()
            trial = trial_from(order, load)
            fault = "failed"
            outcome = single_stream(train_trial)(
                trial, lambda: run in _cancelled or should_stop(), _sent_text(trial)
            )
        except Exception as error:
            # The last line of an error, or the line about the plugin that raised it.
            lines = str(error).strip().splitlines() or [type(error).__name__]
            return {fault: plugins.plugin_error(error) or lines[-1]}
    # A digest computed here proves that this worker trained the trial that was ordered.
    return {"digest": trial.digest, **record_of(outcome)} if outcome else {"stopped": True}


def train_file(path: Path) -> Path:
    """Train the trial in a file, and return the file of its record, in the same folder.

    Plugins have to be loaded: a file imports none.

    Raises:
        ConfigError: The file was not written by `--export-trials`.
        RunError: It cannot be read, this machine would train another trial or computes wrong
            results, or the training failed.
    """
    if not path.name.endswith(ORDER_FILE):
        raise ConfigError(f"{path}: a trial is a file NAME{ORDER_FILE} of compare --export-trials")
    record = path.with_name(path.name.removesuffix(ORDER_FILE) + RECORD_FILE)
    # A repeated command does not train twice.
    if not record.exists():
        answer: Object = train_order(read_record(path), load=False)
        if reason := answer.get("unfit") or answer.get("failed"):
            raise RunError(f"{path}: {reason}")
        write_object(record, answer)
    return record


def cancel(run: str) -> None:
    """End the trials of a comparison that this process trains, after the step that they take."""
    _cancelled.add(run)


def _lacks_text(trial: Trial) -> str:
    """Return why this machine does not have the text; "" if it has, prepared now if need be."""
    settings, sent = resolve(trial.settings), _sent_text(trial)
    try:
        digest = corpus_of(settings, sent).digest
    except RunError as error:
        return str(error)
    other = f"{sent or settings.text.data}: this is another text"
    return "" if trial.text in ("", digest) else other


def _sent_text(trial: Trial) -> str | None:
    """Return where the trial's text is, if it was sent to this machine."""
    path = place_of_text(trial.text)
    return str(path) if path.exists() else None


def place_of_text(digest: str) -> Path:
    """Return where a text lies that trials find by its digest, whatever their settings name."""
    return data_directory() / "sent" / f"{digest}.txt"
