"""Does trainings side by side, each in a process of its own.

On a processor a tiny model keeps one core busy, so as many trainings as cores run at once, each
with one thread: two on two cores are 1.8 times as fast as one after the other with two threads.
One thread also makes every result the same on any number of cores.
"""

import json
import os
import subprocess
import sys
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import asdict
from typing import Protocol, runtime_checkable

from mlx_attn.attention.metal import on_gpu
from mlx_attn.errors import RunError
from mlx_attn.lab.compare.cell import Cell
from mlx_attn.lab.compare.store import Outcome, Store

_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


@runtime_checkable
class Trains(Protocol):
    """Whoever does trainings.

    Attributes:
        store: Where the results are kept, and looked for first.
        size: Trainings at once.
    """

    store: Store
    size: int

    def __call__(self, cells: Iterable[Cell]) -> Generator[tuple[Cell, Outcome], None, None]:
        """Do the trainings that the store lacks, and yield each as it is finished."""
        ...


class Crew:
    """Processes that train.

    Args:
        store: Where the results are kept, and looked for first.
        size: Trainings at once; 0 is one for every core, and one on a GPU.
    """

    def __init__(self, store: Store, size: int = 0):
        self.store = store
        self.size = size or (1 if on_gpu() else os.cpu_count() or 1)
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False

    def __call__(self, cells: Iterable[Cell]) -> Generator[tuple[Cell, Outcome], None, None]:
        """Do the trainings that the store lacks, and yield each as it is finished.

        Whoever stops listening ends the trainings under way; they are lost, the finished ones not.

        Raises:
            RunError: A process ended without a result.
        """
        self._stopped = False
        missing = {cell.digest: cell for cell in cells if cell not in self.store}
        with ThreadPoolExecutor(self.size) as pool:
            futures = {pool.submit(self._train, cell): cell for cell in missing.values()}
            try:
                for future in as_completed(futures):
                    future.result()
                    yield futures[future], self.store[futures[future]]
            finally:
                self._stop(futures)

    def _train(self, cell: Cell) -> None:
        """Train in a process of its own; a session of its own keeps the terminal's Ctrl-C away."""
        command = [sys.executable, "-m", "mlx_attn.lab.compare.worker"]
        order = {"folder": str(self.store.folder), "parent": os.getpid(), **asdict(cell)}
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
            _, complaint = process.communicate(json.dumps(order))
        finally:
            self._running.discard(process)
        if process.returncode or cell not in self.store:
            raise _failure(cell, process.returncode, complaint)

    def _stop(self, futures: Iterable[Future[None]]) -> None:
        self._stopped = True
        for future in futures:
            future.cancel()
        for process in list(self._running):
            process.kill()


def _failure(cell: Cell, code: int, complaint: str) -> RunError:
    last = (complaint.strip().splitlines() or ["no message"])[-1]
    return RunError(
        f"the training of '{cell.arm}', seed {cell.seed}, ended with code {code}: {last}; "
        "what is finished is kept, the same command goes on"
    )
