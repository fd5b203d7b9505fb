"""Where trials run: in processes of this machine, or on the workers of a Dask scheduler.

Both are executors of `concurrent.futures`. Dask starts its workers by SSH, SLURM or Kubernetes,
chooses one for each trial, and repeats the trial of a worker that was lost.
"""

import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

from mlx_attn.errors import ConfigError, RunError
from mlx_attn.machine.streams import concurrent_trainings
from mlx_attn.training.loop import never

CONNECT = 10.0  # seconds that a scheduler has to answer

_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def trials_at_once(jobs: int, on: str) -> int:
    """Return how many trials run at once; see `open_executor`."""
    if not on:
        return jobs or concurrent_trainings(os.cpu_count() or 1)
    with _dask_client(on) as client:
        return max(1, len(client.nthreads()))


@contextmanager
def open_executor(jobs: int, on: str) -> Iterator[Executor]:
    """Open an executor of trials; those that are not finished when it is left are given up.

    Args:
        jobs: Processes of this machine; 0 is one for every core, and one on a GPU.
        on: The address of a Dask scheduler; "" is this machine.

    Raises:
        ConfigError: Dask is not installed.
        RunError: No scheduler answers.
    """
    if on:
        with _dask_client(on) as client:
            yield client.get_executor(pure=False)
    else:
        with worker_pool(trials_at_once(jobs, on)) as pool:
            yield pool


@contextmanager
def _dask_client(address: str) -> Iterator[Any]:
    try:
        import distributed
    except ImportError as error:
        raise ConfigError("--on needs Dask: pip install 'mlx_attn[cluster]'") from error
    for name in [*logging.root.manager.loggerDict]:
        if name.startswith("distributed"):
            # Real problems arrive as errors.
            logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        client = distributed.Client(address, timeout=CONNECT, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise RunError(
            f"no scheduler answers at {address}: start one with 'dask scheduler --host "
            "ADDRESS', and workers with 'dask worker SCHEDULER --host ADDRESS --nthreads 1'"
        ) from error
    with client:
        yield client


@contextmanager
def worker_pool(size: int) -> Iterator[Executor]:
    """Open a pool of processes that are killed when it is left."""
    # `active_children` also lists processes that somebody else has started.
    others = set(multiprocessing.active_children())
    # A fork would copy MLX without its threads.
    pool = _Pool(size, multiprocessing.get_context("spawn"), initializer=_begin_worker)
    try:
        yield pool
    finally:
        for child in set(multiprocessing.active_children()) - others:
            # A pool's own shutdown would wait for the running trainings.
            child.kill()
        pool.shutdown(cancel_futures=True)


def given_up() -> Callable[[], bool]:
    """Return what says that nobody waits any longer for the task that a Dask worker does now.

    Dask cannot end a thread: a task that was cancelled, or whose scheduler is gone, ends itself.
    """
    distributed: Any = sys.modules.get("distributed")
    try:
        worker = distributed.get_worker() if distributed else None
    except ValueError:  # a process that is no worker
        worker = None
    if not worker:
        return never
    task = worker.state.tasks[worker.get_current_task()]
    connected = distributed.Status.running, distributed.Status.paused
    return lambda: task.state != "executing" or worker.status not in connected


class _Pool(ProcessPoolExecutor):
    def submit(self, *call: Any, **options: Any) -> Any:
        """Submit a call; a process that starts for it has one BLAS thread and sees no Ctrl-C."""
        before = dict(os.environ)
        # A blocked signal is inherited: Ctrl-C reaches only the parent, which ends the processes.
        signals = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        os.environ.update(dict.fromkeys(_THREADS, "1"))
        try:
            return super().submit(*call, **options)
        finally:
            for name in _THREADS:
                os.environ.pop(name)
            os.environ.update(before)
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
