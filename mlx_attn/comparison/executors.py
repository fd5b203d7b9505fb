"""Where trials run: in processes of this machine, or elsewhere (`cluster_engines`).

An engine starts trainings like a `concurrent.futures.Executor`, and knows what no scheduler does:
which workers may train, and of which kind their machines are.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from mlx_attn.comparison.plan import Trial
from mlx_attn.comparison.worker import train_order
from mlx_attn.errors import RunError
from mlx_attn.machine.streams import concurrent_trainings
from mlx_attn.records import Object

_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")

KEPT = "finished trainings are kept: the same command continues"

Notice = Callable[[str], None]  # takes a line that a user should see


@dataclass(frozen=True, slots=True)
class Worker:
    """A process that trains one trial at a time."""

    name: str  # its address
    kind: str = ""  # of its machine, as `kind_of` describes it; "" if nobody asked


class Engine:
    """Runs trials on workers."""

    # Takes a line about workers that come, go, or are left out.
    notice: Notice = staticmethod(lambda line: None)
    # Seconds between two looks at which workers there are; None if none comes or goes.
    patience: float | None = None
    dashboard: str = ""  # the address of a page that shows the workers, or ""

    @property
    def size(self) -> int:
        """How many trials run at once, at least 1."""
        raise NotImplementedError

    @contextmanager
    def session(self, trials: Sequence[Trial]) -> Iterator[None]:
        """Make ready for these trials; cancel those that still run when it is left."""
        yield

    def workers(self) -> Sequence[Worker]:
        """Return the workers that may train now; RunError if there can be none."""
        raise NotImplementedError

    def submit(self, worker: Worker, order: Object) -> Future[Object]:
        """Submit an order to a worker; see `worker.train_order` for the result."""
        raise NotImplementedError

    def is_loss(self, error: BaseException) -> bool:
        """Return whether a trial's future failed because its worker is gone."""
        return isinstance(error, BrokenExecutor | CancelledError | TimeoutError)

    def leave_out(self, worker: Worker, reason: str) -> None:
        """Give a worker no more trials."""
        raise RunError(f"{worker.name} cannot train: {reason}")

    def recover(self) -> None:
        """Replace an executor that lost a worker."""
        return

    def close(self) -> None:
        """End the connection to workers elsewhere."""
        return


class LocalEngine(Engine):
    """Processes of this machine.

    Args:
        jobs: Processes at once; 0 is one for every core, and one on a GPU.
    """

    def __init__(self, jobs: int = 0):
        self._jobs = jobs or concurrent_trainings(os.cpu_count() or 1)
        self._processes = self._jobs
        self._open = ExitStack()
        self._pool: Executor | None = None

    @property
    def size(self) -> int:
        return self._jobs

    @contextmanager
    def session(self, trials: Sequence[Trial]) -> Iterator[None]:
        # A process without a trial would only take memory and time to start.
        self._processes = min(self._jobs, len(trials))
        try:
            yield
        finally:
            self.recover()

    def workers(self) -> Sequence[Worker]:
        # The pool decides which process trains a trial.
        return [Worker(f"process {number}") for number in range(self._processes)]

    def submit(self, worker: Worker, order: Object) -> Future[Object]:
        self._pool = self._pool or self._open.enter_context(worker_pool(self._processes))
        # The pool starts processes on demand, inside `submit`.
        with _worker_environment():
            return self._pool.submit(train_order, order, check=False)

    def recover(self) -> None:
        # All processes end; the next trial starts others.
        self._pool = None
        self._open.close()


@contextmanager
def worker_pool(size: int) -> Iterator[ProcessPoolExecutor]:
    """Open a pool of spawned processes that are killed when it is left."""
    # `active_children` also lists processes that somebody else has started.
    others = set(multiprocessing.active_children())
    # A fork would copy MLX without its threads.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(size, context, initializer=_begin_worker)
    try:
        yield pool
    finally:
        for child in set(multiprocessing.active_children()) - others:
            # A pool's own shutdown would wait for the running trainings.
            child.kill()
        pool.shutdown(cancel_futures=True)


@contextmanager
def _worker_environment() -> Iterator[None]:
    """Let workers that start now inherit one BLAS thread each, and no Ctrl-C."""
    before = {name: os.environ.get(name) for name in _THREADS}
    # A blocked signal is inherited: Ctrl-C reaches only the parent, which then ends the workers.
    signals = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)


def _begin_worker() -> None:
    """Keep standard output clean, and end when the parent is gone, even if it was killed."""
    # Standard output belongs to the command's results; a library's print must not mix with them.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    def end_with_parent() -> None:
        if parent := multiprocessing.parent_process():
            parent.join()
        os._exit(1)

    # The sentinel of the parent becomes ready even if the parent was killed.
    threading.Thread(target=end_with_parent, daemon=True).start()
