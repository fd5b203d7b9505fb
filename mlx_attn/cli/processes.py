"""Several processes under mlx.launch, as commands see them: connecting, errors, noise on stderr."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn

from mlx_attn.cli.output import say
from mlx_attn.errors import ConfigError, RunError

if TYPE_CHECKING:
    from mlx_attn.training.distributed import Distributed

TIMEOUT = "MLX_ATTN_RANK_TIMEOUT"  # seconds that one rank waits for another that says nothing
_NOISE = r"^\[ring\] "  # twenty lines about sockets, which MLX writes when a rank is lost


def connect() -> "Distributed":
    """The ranks that this process was launched with.

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
        ranks = init_distributed(timeout, _give_up)
    finally:
        signal.signal(signal.SIGINT, before)
    if ranks.size > 1:
        _filter_stderr()
    return ranks


def refuse_ranks(command: str, instead: str) -> None:
    """Refuse to run as several ranks; only the first rank prints the reason."""
    rank = os.environ.get("MLX_RANK", os.environ.get("OMPI_COMM_WORLD_RANK"))
    if rank == "0":
        raise ConfigError(f"mlx.launch is for train: {command} takes {instead} instead")
    if rank is not None:
        raise SystemExit(2)


@contextmanager
def prefix_errors(ranks: "Distributed") -> Iterator[None]:
    """Errors of every rank but the first begin with its number."""
    try:
        yield
    except (ConfigError, RunError) as error:
        if not ranks.rank:
            raise
        raise type(error)(f"rank {ranks.rank}: {error}") from error


def _filter_stderr() -> None:
    """Drop noise from what MLX itself writes to stderr; our own lines go there directly."""
    with suppress(FileNotFoundError), os.fdopen(os.dup(2), "wb") as stderr:
        # In its own process group it gets no Ctrl-C and outlives us, so that no line is lost.
        process = subprocess.Popen(
            ["grep", "--line-buffered", "-v", _NOISE],
            stdin=subprocess.PIPE,
            stdout=stderr,
            process_group=0,
        )
        sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, errors="backslashreplace")
        assert process.stdin
        os.dup2(process.stdin.fileno(), 2)


def _give_up(message: str) -> NoReturn:
    """End the process from any thread."""
    say(f"Error: {message}", err=True)
    os._exit(1)
