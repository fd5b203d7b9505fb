"""Several processes under mlx.launch, as commands see them: connecting, refusals, errors."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from mlx_attn.cli.output import say
from mlx_attn.errors import ConfigError, RunError

if TYPE_CHECKING:
    from mlx_attn.training.distributed import Distributed

TIMEOUT = "MLX_ATTN_RANK_TIMEOUT"  # seconds that one rank waits for another that says nothing


def connect() -> "Distributed":
    """Return the ranks that this process was launched with.

    Ctrl-C ends the process while it waits for the others: MLX lets no Python run meanwhile.
    """
    from mlx_attn.training.distributed import DEFAULT_TIMEOUT, init_distributed

    text = os.environ.get(TIMEOUT, "")
    try:
        timeout = float(text) if text else DEFAULT_TIMEOUT
    except ValueError:
        timeout = 0.0
    if not 0 < timeout <= threading.TIMEOUT_MAX:
        raise ConfigError(f"{TIMEOUT}={text} must be a positive number of seconds")
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        return init_distributed(timeout, _give_up)
    finally:
        signal.signal(signal.SIGINT, before)


def refuse_ranks(command: str, instead: str) -> None:
    """Refuse to run as several ranks; only the first rank prints the reason."""
    rank = os.environ.get("MLX_RANK", os.environ.get("OMPI_COMM_WORLD_RANK"))
    if rank == "0":
        raise ConfigError(f"mlx.launch is for train: {command} takes {instead} instead")
    if rank is not None:
        raise SystemExit(2)


@contextmanager
def prefix_errors(ranks: "Distributed") -> Iterator[None]:
    """Begin the errors of every rank but the first with its number."""
    try:
        yield
    except (ConfigError, RunError) as error:
        if not ranks.rank:
            raise
        raise type(error)(f"rank {ranks.rank}: {error}") from error


def _give_up(message: str) -> NoReturn:
    """End the process from any thread."""
    say(f"Error: {message}", err=True)
    os._exit(1)
