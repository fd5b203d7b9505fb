"""Several processes on the command line: connecting them, and what each may say."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn

import click

from mlx_attn.errors import ConfigError, RunError

if TYPE_CHECKING:
    from mlx_attn.training.ranks import Ranks

TIMEOUT = "MLX_ATTN_RANK_TIMEOUT"
"""Environment variable: seconds that one rank waits for another that says nothing."""

CHATTER = r"^\[ring\] "
"""Twenty lines about sockets, which MLX writes when a rank is lost."""


def connected() -> "Ranks":
    """The ranks that this process was launched with.

    Ctrl-C ends the process while it waits for the others: MLX lets no Python run meanwhile.
    """
    from mlx_attn.training.ranks import connect

    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        ranks = connect(_patience(), _give_up)
    finally:
        signal.signal(signal.SIGINT, before)
    if ranks.size > 1:
        _leave_out(CHATTER)
    return ranks


@contextmanager
def named(ranks: "Ranks") -> Iterator[None]:
    """Errors of every rank but the first begin with its number."""
    try:
        yield
    except (ConfigError, RunError) as error:
        if not ranks.rank:
            raise
        raise type(error)(f"rank {ranks.rank}: {error}") from error


def _patience() -> float:
    from mlx_attn.training.ranks import PATIENCE

    text = os.environ.get(TIMEOUT, "")
    try:
        seconds = float(text) if text else PATIENCE
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= threading.TIMEOUT_MAX:
        raise ConfigError(f"{TIMEOUT}={text} must be a positive number of seconds")
    return seconds


def _leave_out(pattern: str) -> None:
    """Drop such lines from what MLX itself writes to stderr; our own lines go there directly."""
    with suppress(FileNotFoundError), os.fdopen(os.dup(2), "wb") as stderr:
        # In a group of its own it hears no Ctrl-C and outlives us, so that no line is lost.
        process = subprocess.Popen(
            ["grep", "--line-buffered", "-v", pattern],
            stdin=subprocess.PIPE,
            stdout=stderr,
            process_group=0,
        )
        sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, errors="backslashreplace")
        assert process.stdin
        os.dup2(process.stdin.fileno(), 2)


def _give_up(message: str) -> NoReturn:
    """End the process from any thread."""
    click.echo(f"Error: {message}", err=True)
    os._exit(1)
