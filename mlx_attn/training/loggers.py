"""A training's numbers where users keep theirs: TensorBoard, Weights & Biases, Trackio.

None of them is a dependency, and none is imported unless `--log-to` names it.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from mlx_attn.errors import RunError
from mlx_attn.run_directory import Run
from mlx_attn.training.events import Evaluated, Event, Stepped, as_record

PROJECT = "mlx_attn"
"""What runs are filed under, where a service has projects."""

_PREFIXES = {Stepped: "train", Evaluated: "val"}
_NOT_CURVES = {"event", "step", "steps", "best", "seconds_left"}

Log = Callable[[Mapping[str, float], int], None]
"""Takes values by name, and the step that they are of."""


def values_of(event: Event) -> dict[str, float]:
    """The numbers of an event that make curves: "train/loss", "val/bits_per_byte"; maybe none."""
    prefix = _PREFIXES.get(type(event))
    if prefix is None:
        return {}
    record = {key: value for key, value in as_record(event).items() if key not in _NOT_CURVES}
    names = {key: f"{prefix}/{key.removeprefix('val_')}" for key in record}
    numbers = {key: value for key, value in record.items() if isinstance(value, int | float)}
    return {names[key]: float(value) for key, value in numbers.items()}


def check_logger(name: str) -> None:
    """Raise a RunError if the logger's library is not installed."""
    if name:
        _library(_MODULES.get(name, name))


@contextmanager
def logging_to(name: str, run: Run | None) -> Iterator[Callable[[Event], None]]:
    """Passes the events of a run on, until the block ends.

    Args:
        name: One of `LOGGERS`, or "" for nowhere.
        run: What is trained; None on a rank that keeps nothing, and so logs nothing.
    """
    if not name or run is None:
        yield lambda event: None
        return
    with LOGGERS[name](name, run) as log:

        def pass_on(event: Event) -> None:
            if values := values_of(event):
                log(values, getattr(event, "step", 0))

        yield pass_on


@contextmanager
def _tensorboard(name: str, run: Run) -> Iterator[Log]:
    """Event files in the run's own directory: `tensorboard --logdir runs`."""
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
    """Weights & Biases, or Trackio, which has the same three functions."""
    library = _library(name)
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
"""By the name that `--log-to` takes."""

_MODULES = {"tensorboard": "tensorboardX"}
"""Where the module has another name."""
