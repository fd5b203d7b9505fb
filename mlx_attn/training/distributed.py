"""Several processes that train one model, on one machine or several (MLX's ranks).

Every process, or rank, runs the same program. `Distributed` is a single process: a group of one
rank. `ProcessGroup` is several, connected by MLX: by TCP in a ring, or by whatever else
`mlx.launch` offers. All communication goes through the methods that it overrides, which every rank
must call in the same order.
"""

import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import mlx.core as mx
import numpy as np

from mlx_attn.arrays import named_arrays
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.files import make_directory
from mlx_attn.machine import messages

Item = TypeVar("Item")

PLACES = ("MLX_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
"""Environment variables that give a process its rank: `mlx.launch` and MPI set them."""

DEFAULT_TIMEOUT = 600.0
"""Seconds that a rank waits for the others unless told otherwise."""


class LostRank(RunError):
    """Another rank ended, cannot be reached, or is silent for too long."""


class Distributed:
    """A single process."""

    rank: int = 0  # rank 0 alone writes files and prints
    size: int = 1  # the number of ranks

    def average(self, tree: Any) -> Any:
        """The mean over the ranks of every array in a tree, such as a gradient; may be compiled."""
        return tree

    def sending_order(self, averaged: Any) -> list[mx.array]:
        """What to evaluate of an averaged tree before all else, one by one.

        MLX computes what one call evaluates in an order of its own, in which messages come last.
        """
        return []

    def sent_bytes(self, tree: Any) -> int:
        """Bytes that a rank sends for an average of a tree.

        In a ring of n ranks it sends each array's n parts but one twice, once to be added up and
        once to be handed on: 2 (n - 1) / n of the array (Patarasuk and Yuan, "Bandwidth optimal
        all-reduce algorithms", 2009).
        """
        held = sum(array.nbytes for array in named_arrays(tree).values())
        return 2 * (self.size - 1) * held // self.size

    def sum(self, array: mx.array) -> mx.array:
        """The sum over the ranks of an array of one shape, evaluated."""
        return array

    def gather(self, record: Any) -> list[Any]:
        """Every rank's record, by rank: any JSON value; raises `LostRank` when one is gone."""
        return [record]

    @contextmanager
    def with_timeout(self) -> Iterator[None]:
        """A context for waiting for other ranks; raises `LostRank` when one is gone."""
        yield

    def first(self, record: Any) -> Any:
        """Rank 0's record, whatever the other ranks give."""
        return self.gather(record)[0]

    def barrier(self) -> None:
        """Return when every rank has come here."""
        self.gather(None)

    def broadcast(self, arrays: Mapping[str, mx.array]) -> dict[str, mx.array]:
        """Rank 0's arrays; the other ranks give arrays of the same names, types and shapes."""
        others = self.rank > 0
        # By name: what was read from a file comes in another order than what was made.
        return {
            name: self.sum(mx.zeros_like(arrays[name]) if others else arrays[name])
            for name in sorted(arrays)
        }

    def share(self, items: Sequence[Item]) -> Sequence[Item]:
        """This rank's share of a list that all ranks have: every `size`-th item from `rank` on."""
        return items[self.rank :: self.size]

    def part(self, batch: mx.array) -> mx.array:
        """This rank's equal part of a batch, along its first axis."""
        count = batch.shape[0] // self.size
        return batch[self.rank * count : (self.rank + 1) * count]

    def check_divides(self, batch_size: int) -> None:
        """Raise a `ConfigError` where a batch cannot be shared equally."""
        if batch_size % self.size:
            fitting = max(1, batch_size // self.size) * self.size
            raise ConfigError(
                f"batch_size={batch_size} cannot be shared equally by {self.size} ranks: use a "
                f"multiple of {self.size}, such as {fitting}"
            )

    def check_same(self, what: str, value: Any) -> None:
        """Raise a `ConfigError` where a rank has another value than rank 0."""
        values = self.gather(value)
        for rank, other in enumerate(values):
            if other != values[0]:
                raise ConfigError(f"rank {rank} has another {what} than rank 0")

    def random_seed(self, seed: int, step: int) -> int:
        """What this rank draws the random numbers of a step from, such as those of dropout.

        A function of (seed, step, rank) alone: whatever else draws numbers, and however often a
        training is resumed, its steps draw the same. Rank 0 draws what a single process would.
        """
        high, low = np.random.SeedSequence([seed, step, self.rank]).generate_state(2)
        return (int(high) << 32) | int(low)


class ProcessGroup(Distributed):
    """Several processes.

    Args:
        group: MLX's connection of them.
        timeout: Seconds that one waits for the others.
        give_up: Called from another thread with a message after that time; it must end the
            process, because the thread that waits cannot be interrupted.
    """

    def __init__(self, group: mx.distributed.Group, timeout: float, give_up: Callable[[str], None]):
        self.rank, self.size = group.rank(), group.size()
        self._group, self._timeout, self._give_up = group, timeout, give_up
        self._stream = mx.new_stream(mx.cpu)

    def average(self, tree: Any) -> Any:
        """Message by message beside the backward pass, where that pays."""
        return messages.average_gradients(tree, self._group, self._stream)

    def sending_order(self, averaged: Any) -> list[mx.array]:
        """None where one message waits for all gradients anyway."""
        return messages.sending_order(averaged)

    def sum(self, array: mx.array) -> mx.array:
        """Waits for all ranks."""
        return self._exchanged(mx.distributed.all_sum, array)

    def gather(self, record: Any) -> list[Any]:
        """As JSON in bytes, padded to the longest."""
        data = json.dumps(record).encode()
        lengths = np.array(self._exchanged(mx.distributed.all_gather, mx.array([len(data)])))
        padded = np.zeros(lengths.max(), np.uint8)
        padded[: len(data)] = np.frombuffer(data, np.uint8)
        rows = np.array(self._exchanged(mx.distributed.all_gather, mx.array(padded))).reshape(
            self.size, -1
        )
        return [json.loads(row[:n].tobytes()) for row, n in zip(rows, lengths, strict=True)]

    @contextmanager
    def with_timeout(self) -> Iterator[None]:
        """Gives up when it takes too long."""
        message = (
            f"nothing was heard of another of the {self.size} ranks for {self._timeout:g} s: end "
            "them all, and resume from the last checkpoint"
        )
        timer = threading.Timer(self._timeout, self._give_up, [message])
        timer.daemon = True
        timer.start()
        try:
            yield
        except RuntimeError as error:
            if "[ring]" not in str(error):
                raise
            raise LostRank(
                f"another of the {self.size} ranks ended, or the connection to it broke"
            ) from error
        finally:
            timer.cancel()

    def _exchanged(self, exchange: Callable[..., mx.array], array: mx.array) -> mx.array:
        with self.with_timeout():
            result = exchange(array, group=self._group)
            mx.eval(result)
        return result


SINGLE_PROCESS = Distributed()


def init_distributed(timeout: float, give_up: Callable[[str], None]) -> Distributed:
    """All ranks that this process was launched with; waits until they are there.

    Arguments as of `ProcessGroup`.

    Raises:
        RunError: The environment names ranks that cannot be connected.
    """
    place = next((os.environ[name] for name in PLACES if name in os.environ), None)
    if place is None:
        return SINGLE_PROCESS
    try:
        group = mx.distributed.init()
    except (RuntimeError, ValueError) as error:
        raise RunError(f"the ranks cannot be connected: {error}") from error
    if group.size() > 1:
        _compile_apart(group.rank())
        return ProcessGroup(group, timeout, give_up)
    if place != "0":
        raise RunError(
            f"this is rank {place}, and nothing says where the others are: start all with "
            "mlx.launch, or set MLX_HOSTFILE"
        )
    return SINGLE_PROCESS


def _compile_apart(rank: int) -> None:
    """Give every rank but the first a temporary folder of its own.

    MLX compiles code for the processor into files there, not in one step: ranks on one machine
    would read each other's unfinished ones.
    """
    if rank:
        folder = Path(tempfile.gettempdir()) / f"mlx-rank-{rank}-of-{os.getuid()}"
        make_directory(folder)
        os.environ["TMPDIR"] = str(folder)
