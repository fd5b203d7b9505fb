"""Loggers for a training's numbers: TensorBoard, Weights & Biases, Trackio.

None of them is a dependency; `--log-to` imports the one that it names.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from mlx_attn.errors import RunError
from mlx_attn.run_directory import Run
from mlx_attn.training.events import Evaluated, Event, Stepped, as_record

PROJECT = "mlx_attn"  # the project name of runs, for services that have projects

_PREFIXES = {Stepped: "train", Evaluated: "val"}
_NOT_CURVES = {"event", "step", "steps", "best", "seconds_left"}

Log = Callable[[Mapping[str, float], int], None]  # takes values by name, and their step


def values_of(event: Event) -> dict[str, float]:
    """Return the plottable numbers of an event, such as "train/loss" or "val/bits_per_byte"."""
    # Only steps and validations have curves.
    prefix = _PREFIXES.get(type(event))
    if prefix is None:
        return {}
    record = {key: value for key, value in as_record(event).items() if key not in _NOT_CURVES}
    # "val_loss" of a validation becomes "val/loss".
    names = {key: f"{prefix}/{key.removeprefix('val_')}" for key in record}
    numbers = {key: value for key, value in record.items() if isinstance(value, int | float)}
    return {names[key]: float(value) for key, value in numbers.items()}


def check_logger(name: str) -> None:
    """Raise a RunError if the logger's library is not installed."""
    if name:
        _library(_MODULES.get(name, name))


@contextmanager
def logging_to(name: str, run: Run | None) -> Iterator[Callable[[Event], None]]:
    """Yield a function that sends the events of a run to a logger.

    Args:
        name: One of `LOGGERS`, or "" for nowhere.
        run: The run; None on a rank that saves nothing, and so logs nothing.
    """
    if not name or run is None:
        yield lambda event: None
        return
    with LOGGERS[name](name, run) as log:

        def send(event: Event) -> None:
            if values := values_of(event):
                log(values, getattr(event, "step", 0))

        yield send


@contextmanager
def _tensorboard(name: str, run: Run) -> Iterator[Log]:
    """Write event files to the run's own directory: `tensorboard --logdir runs`."""
    writer = _library(_MODULES[name]).SummaryWriter(str(run.path / name))

    def log(values: Mapping[str, float], step: int) -> None:
        for key, value in values.items():
            writer.add_scalar(key, value, step)

    try:
        yield log
    finally:
        writer.close()


@contextmanager
def _hosted(name: str, run: Run) -> Iterator[Log]:
    """Log to Weights & Biases, or to Trackio, which has the same three functions."""
    library = _library(name)
    # `resume` continues the curves of a run that was interrupted.
    library.init(project=PROJECT, name=run.name, config=dict(run.settings), resume="allow")
    try:
        yield lambda values, step: library.log(dict(values), step=step)
    finally:
        library.finish()


def _library(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise RunError(f"--log-to needs {module}: pip install {module}") from error


LOGGERS = {"tensorboard": _tensorboard, "wandb": _hosted, "trackio": _hosted}
"""Loggers by their name in `--log-to`."""

_MODULES = {"tensorboard": "tensorboardX"}  # modules whose names differ
