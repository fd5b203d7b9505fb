"""Does trainings side by side, in processes of their own.

On a processor a tiny model keeps one core busy, so as many trainings as cores run at once, each
with one thread: two on two cores are 1.8 times as fast as one after the other with two threads.
One thread also makes every result the same on any number of cores.
"""

import json
import os
import subprocess
import sys
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import asdict
from typing import Protocol, runtime_checkable

from mlx_attn.attention.metal import on_gpu
from mlx_attn.errors import RunError
from mlx_attn.lab.compare.batches import Divide, apart
from mlx_attn.lab.compare.cell import Cell
from mlx_attn.lab.compare.store import Outcome, Store

_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")

Finished = tuple[Cell, Outcome]


@runtime_checkable
class Trains(Protocol):
    """Whoever does trainings.

    Attributes:
        store: Where the results are kept, and looked for first.
        size: Processes at once.
        way: How they train, for people: "apart", or "as replicas".
    """

    store: Store
    size: int
    way: str

    def missing(self, cells: Iterable[Cell]) -> list[Cell]:
        """Those that are not finished, each once; all others are in the store."""
        ...

    def __call__(self, cells: Iterable[Cell]) -> Generator[Finished, None, None]:
        """Do the trainings that are missing, and yield each as it is finished."""
        ...


class Crew:
    """Processes that train.

    Args:
        store: Where the results are kept, and looked for first.
        size: Processes at once; 0 is one for every core, and one on a GPU.
        divide: Which trainings one process does.
        way: What that is called.
    """

    def __init__(self, store: Store, size: int = 0, divide: Divide = apart, way: str = "apart"):
        self.store, self.way = store, way
        self.size = size or usual_size()
        self._divide = divide
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False

    def missing(self, cells: Iterable[Cell]) -> list[Cell]:
        """Those that the store lacks, each once."""
        wanted = {cell.digest: cell for cell in cells}
        return [cell for cell in wanted.values() if cell not in self.store]

    def __call__(self, cells: Iterable[Cell]) -> Generator[Finished, None, None]:
        """Do the trainings that are missing, and yield each as it is finished.

        Whoever stops listening ends the trainings under way; they are lost, the finished ones not.

        Raises:
            RunError: A process ended without a result.
        """
        for finished in self.rounds(self.missing(cells)):
            yield from finished

    def rounds(
        self, cells: Sequence[Cell], seconds: float | None = None
    ) -> Generator[list[Finished], None, None]:
        """Do trainings, and yield from time to time what was finished since the last time.

        Args:
            cells: The trainings, none of which is finished.
            seconds: From time to time; None is whenever one is finished.

        Raises:
            RunError: A process ended without a result.
        """
        self._stopped = False
        until = FIRST_COMPLETED if seconds is None else FIRST_EXCEPTION
        with ThreadPoolExecutor(self.size) as pool:
            futures = {pool.submit(self._train, batch): batch for batch in self._divide(cells)}
            try:
                left = set(futures)
                while left:
                    done, left = wait(left, seconds, until)
                    yield [self._finished(cell) for f in done for cell in futures[f] if _ended(f)]
            finally:
                self._stop(futures)

    def _finished(self, cell: Cell) -> Finished:
        return cell, self.store[cell]

    def _train(self, batch: Sequence[Cell]) -> None:
        """Train in a process of its own; a session of its own keeps the terminal's Ctrl-C away."""
        command = [sys.executable, "-m", "mlx_attn.lab.compare.worker"]
        order = {"folder": str(self.store.folder), "parent": os.getpid()}
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **dict.fromkeys(_THREADS, "1")},
            start_new_session=True,
        )
        self._running.add(process)
        if self._stopped:
            process.kill()
        try:
            _, complaint = process.communicate(
                json.dumps({**order, "cells": [asdict(cell) for cell in batch]})
            )
        finally:
            self._running.discard(process)
        if process.returncode or self.missing(batch):
            raise _failure(batch, process.returncode, complaint)

    def _stop(self, futures: Iterable[Future[None]]) -> None:
        self._stopped = True
        for future in futures:
            future.cancel()
        for process in list(self._running):
            process.kill()


def usual_size() -> int:
    """Processes at once unless told otherwise: one for every core, and one on a GPU."""
    return 1 if on_gpu() else os.cpu_count() or 1


def _ended(future: Future[None]) -> bool:
    """Whether it ended well.

    Raises:
        RunError: It did not.
    """
    return future.result() is None


def _failure(batch: Sequence[Cell], code: int, complaint: str) -> RunError:
    last = (complaint.strip().splitlines() or ["no message"])[-1]
    seeds = ", ".join(str(cell.seed) for cell in batch)
    return RunError(
        f"the training of '{batch[0].arm}', seed {seeds}, ended with code {code}: {last}; "
        "what is finished is kept, the same command goes on"
    )
