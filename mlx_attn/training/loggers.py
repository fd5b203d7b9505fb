"""Loggers for a training's numbers: TensorBoard, Weights & Biases, Trackio.

None of them is a dependency; `--log-to` imports the one that it names.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from mlx_attn.errors import RunError
from mlx_attn.run_directory import Run
from mlx_attn.training.events import Evaluated, Event, Stepped, as_record

_NOT_CURVES = {"event", "step", "steps", "best", "seconds_left"}


def values_of(event: Event) -> dict[str, float]:
    """Return the plottable numbers of an event, such as "train/loss" or "val/bits_per_byte"."""
    if not isinstance(event, Stepped | Evaluated):
        return {}
    prefix = "train" if isinstance(event, Stepped) else "val"
    # "val_loss" of a validation becomes "val/loss".
    return {
        f"{prefix}/{key.removeprefix('val_')}": float(value)
        for key, value in as_record(event).items()
        if key not in _NOT_CURVES and isinstance(value, int | float)
    }


def check_logger(name: str) -> None:
    """Raise a RunError if the logger's library is not installed."""
    if name:
        _library(name)


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
    library = _library(name)
    if name == "tensorboard":
        # Event files in the run's own directory: `tensorboard --logdir runs`.
        writer = library.SummaryWriter(str(run.path / name))
        finish = writer.close
    else:
        # Trackio has the functions of Weights & Biases. `resume` continues the curves of a run that
        # was interrupted.
        writer, settings = None, dict(run.settings)
        library.init(project="mlx_attn", name=run.name, config=settings, resume="allow")
        finish = library.finish

    def send(event: Event) -> None:
        values, step = values_of(event), getattr(event, "step", 0)
        if writer:
            for key, value in values.items():
                writer.add_scalar(key, value, step)
        elif values:
            library.log(values, step=step)

    try:
        yield send
    finally:
        finish()


def _library(name: str) -> Any:
    module = LOGGERS[name]
    try:
        return import_module(module)
    except ImportError as error:
        raise RunError(f"--log-to needs {module}: pip install {module}") from error


LOGGERS = {"tensorboard": "tensorboardX", "wandb": "wandb", "trackio": "trackio"}
"""Modules by their name in `--log-to`."""
