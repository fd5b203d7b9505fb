"""Data-parallel training by several processes (MLX's ranks), on one machine or several.

Every process, or rank, runs the same program. MLX connects them: by TCP in a ring, or by any other
backend of `mlx.launch`. A single process is a group of one rank.
"""

import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import mlx.core as mx
import numpy as np

from mlx_attn.arrays import named_arrays
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.files import make_directory
from mlx_attn.machine import messages

Item = TypeVar("Item")

_RANK = ("MLX_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")  # environment variables of launchers

DEFAULT_TIMEOUT = 600.0  # seconds that a rank waits for the others by default


class LostRank(RunError):
    """Another rank ended, cannot be reached, or has been silent for too long."""


class Distributed:
    """The processes that train together: a single one, or those that MLX connected.

    Every rank must call the methods in the same order.

    Args:
        group: MLX's connection between several processes.
        timeout: Seconds to wait for the others.
        give_up: Called from another thread with a message after that time; it must end the
            process, because the thread that waits cannot be interrupted.
    """

    rank: int = 0  # only rank 0 writes files and prints
    size: int = 1  # the number of ranks
    _group: mx.distributed.Group | None = None

    def __init__(
        self,
        group: mx.distributed.Group | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        give_up: Callable[[str], None] = lambda message: None,
    ):
        if group is not None:
            self.rank, self.size = group.rank(), group.size()
            self._group, self._timeout, self._give_up = group, timeout, give_up
            self._stream = mx.new_stream(mx.cpu)

    def average(self, tree: Any) -> Any:
        """Average a tree of arrays, on a GPU message by message during the backward pass."""
        if self._group is None:
            return tree
        return messages.average_gradients(tree, self._group, self._stream)

    def sending_order(self, averaged: Any) -> list[mx.array]:
        """Return the arrays of an averaged tree to evaluate first, one by one.

        MLX orders the arrays of one evaluation itself, and would put messages last.
        """
        return [] if self._group is None else messages.sending_order(averaged)

    def sent_bytes(self, tree: Any) -> int:
        """Return the bytes that a rank sends to average a tree.

        In a ring of n ranks each sends n - 1 of an array's n parts twice, once to be summed and
        once to be passed on (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", 2009).
        """
        total = sum(array.nbytes for array in named_arrays(tree).values())
        return 2 * (self.size - 1) * total // self.size

    def sum(self, array: mx.array) -> mx.array:
        """Return the evaluated sum of an array over the ranks; its shape is the same on all."""
        return array if self._group is None else self._exchanged(mx.distributed.all_sum, array)

    def gather(self, record: Any) -> list[Any]:
        """Return every rank's record (any JSON value), by rank; raise `LostRank` if one is gone."""
        if self._group is None:
            return [record]
        data = json.dumps(record).encode()
        lengths = np.array(self._exchanged(mx.distributed.all_gather, mx.array([len(data)])))
        # `all_gather` needs equal shapes on all ranks: the records are padded to the longest.
        padded = np.zeros(lengths.max(), np.uint8)
        padded[: len(data)] = np.frombuffer(data, np.uint8)
        gathered = np.array(self._exchanged(mx.distributed.all_gather, mx.array(padded)))
        rows = gathered.reshape(self.size, -1)  # [ranks, longest]
        return [json.loads(row[:n].tobytes()) for row, n in zip(rows, lengths, strict=True)]

    def _exchanged(self, exchange: Callable[..., mx.array], array: mx.array) -> mx.array:
        with self.with_timeout():
            result = exchange(array, group=self._group)
            # Evaluated here, within the timeout: a lazy result would wait somewhere else.
            mx.eval(result)
        return result

    @contextmanager
    def with_timeout(self) -> Iterator[None]:
        """Limit the time spent waiting for other ranks; raise `LostRank` if one is gone."""
        if self._group is None:
            yield
            return
        message = (
            f"nothing was heard of another of the {self.size} ranks for {self._timeout:g} s: end "
            "them all, and resume from the last checkpoint"
        )
        # A waiting exchange cannot be interrupted from Python, so a second thread ends the process.
        timer = threading.Timer(self._timeout, self._give_up, [message])
        timer.daemon = True
        timer.start()
        try:
            yield
        except RuntimeError as error:
            # MLX reports a broken connection only by its text.
            if "[ring]" not in str(error):
                raise
            raise LostRank(
                f"another of the {self.size} ranks ended, or the connection to it broke"
            ) from error
        finally:
            timer.cancel()

    def first(self, record: Any) -> Any:
        """Return rank 0's record on every rank."""
        return self.gather(record)[0]

    def broadcast(self, arrays: Mapping[str, mx.array]) -> dict[str, mx.array]:
        """Return rank 0's arrays; all ranks pass the same names, types and shapes."""
        others = self.rank > 0
        # Sorted, because arrays read from a file have another order than new ones.
        return {
            name: self.sum(mx.zeros_like(arrays[name]) if others else arrays[name])
            for name in sorted(arrays)
        }

    def share(self, items: Sequence[Item]) -> Sequence[Item]:
        """Return this rank's part of a list that all ranks have: every `size`-th item."""
        return items[self.rank :: self.size]

    def part(self, batch: mx.array) -> mx.array:
        """Return this rank's equal part of a batch, along the first axis."""
        count = batch.shape[0] // self.size
        return batch[self.rank * count : (self.rank + 1) * count]

    def check_divides(self, batch_size: int) -> None:
        """Raise a `ConfigError` if a batch cannot be divided equally."""
        if batch_size % self.size:
            fitting = max(1, batch_size // self.size) * self.size
            raise ConfigError(
                f"batch_size={batch_size} cannot be shared equally by {self.size} ranks: use a "
                f"multiple of {self.size}, such as {fitting}"
            )

    def check_same(self, **values: Any) -> None:
        """Raise a `ConfigError` if one of a rank's values, by name, differs from rank 0's."""
        ranks = self.gather(values)
        for rank, name in product(range(1, len(ranks)), values):
            if ranks[rank][name] != ranks[0][name]:
                raise ConfigError(f"rank {rank} has another {name} than rank 0")

    def random_seed(self, seed: int, step: int) -> int:
        """Return the seed of this rank's random numbers, such as dropout's, for one step.

        It depends only on (seed, step, rank), so resuming or drawing other numbers does not change
        a step. Rank 0 draws the same numbers as a single process.
        """
        high, low = np.random.SeedSequence([seed, step, self.rank]).generate_state(2)
        return (int(high) << 32) | int(low)


SINGLE_PROCESS = Distributed()


def init_distributed(timeout: float, give_up: Callable[[str], None]) -> Distributed:
    """Join the ranks launched with this process; for the arguments see `Distributed`.

    Raises:
        RunError: The environment names ranks that cannot be connected.
    """
    # Without a launcher's variables this is a single process, and MLX is not asked.
    rank = next((os.environ[name] for name in _RANK if name in os.environ), None)
    if rank is None:
        return SINGLE_PROCESS
    try:
        group = mx.distributed.init()
    except (RuntimeError, ValueError) as error:
        raise RunError(f"the ranks cannot be connected: {error}") from error
    if group.size() == 1 and rank != "0":
        raise RunError(
            f"this is rank {rank}, and the addresses of the others are missing: start all with "
            "mlx.launch, or set MLX_HOSTFILE"
        )
    if group.rank():
        # MLX compiles code for the processor into files in the temporary folder, and does not write
        # them atomically: ranks on one machine would read each other's unfinished files.
        folder = Path(tempfile.gettempdir()) / f"mlx-rank-{group.rank()}-of-{os.getuid()}"
        make_directory(folder)
        os.environ["TMPDIR"] = str(folder)
    return Distributed(group, timeout, give_up) if group.size() > 1 else SINGLE_PROCESS
