"""Has the missing trials of a comparison trained by processes, or by workers of a Dask scheduler.

Both are executors of `concurrent.futures`. Dask starts its workers by SSH, SLURM or Kubernetes, and
repeats the trial of a worker that was lost. A worker gets a trial and returns a record, both as
JSON objects; it has text and plugins at the same paths.
"""

import logging
import multiprocessing
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent import futures
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from mlx_attn import plugins
from mlx_attn.comparison.plan import Trial
from mlx_attn.comparison.trial import (
    LeakError,
    Outcome,
    Store,
    outcome_from,
    record_of,
    train_trial,
)
from mlx_attn.errors import ConfigError, RunError, one_line, optional
from mlx_attn.machine import blas
from mlx_attn.machine.facts import arithmetic
from mlx_attn.machine.streams import concurrent_trainings, single_stream
from mlx_attn.records import Object, as_record
from mlx_attn.training.loop import never

KEPT = "finished trainings are kept: the same command continues"
CONNECT = 10.0  # seconds that a scheduler has to answer
_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")

# MLX's state and the number of threads belong to the process, so its trials take turns.
_one_at_a_time = threading.Lock()


class Runner:
    """Trains trials.

    Args:
        store: Where results are kept, and looked for first.
        jobs: Processes of this machine; 0 is one for every core, and one on a GPU.
        on: The address of a Dask scheduler whose workers train instead.

    Raises:
        ConfigError: The address is not like a scheduler's.
        RunError: Dask is not installed, or no scheduler answers.
    """

    def __init__(self, store: Store, jobs: int = 0, on: str = ""):
        self.store, self._on = store, on
        self.size = jobs or concurrent_trainings(os.cpu_count() or 1)
        if on:
            with _dask_client(on) as client:
                self.size = max(1, len(client.nthreads()))

    def __call__(self, trials: Iterable[Trial]) -> Generator[tuple[Trial, Outcome], None, None]:
        """Train the missing ones, and yield each as it is finished.

        Closing the generator ends the running trials; finished ones are kept.

        Raises:
            RunError: A training failed (a user's code: from a ConfigError), was refused or lost.
        """
        here, stop = arithmetic(), _is_unwanted if self._on else never
        with _dask_client(self._on) if self._on else worker_pool(self.size) as opened:
            executor = opened.get_executor(pure=False) if self._on else opened
            ordered = {
                executor.submit(train_order, asdict(trial), here, stop): trial
                for trial in self.store.missing(trials)
            }
            for future in futures.as_completed(ordered):
                trial = ordered[future]
                outcome = self._outcome(future, trial)
                # Stored before it is reported, so that no error after this loses the trial.
                self.store[trial] = outcome
                yield trial, outcome

    def _outcome(self, future: futures.Future[Object], trial: Trial) -> Outcome:
        try:
            return outcome_from(future.result(), trial, "the worker's answer")
        except (futures.BrokenExecutor, futures.CancelledError):
            raise  # no trial's fault
        except Exception as error:
            failed = f"the training of '{trial.arm}', seed {trial.seed}, failed"
            raise RunError(f"{failed}: {error}; {KEPT}") from error


def train_order(order: Object, wanted: Mapping[str, str], stop: Callable[[], bool]) -> Object:
    """Train a trial on one thread, with the arithmetic that is wanted, and return its record.

    Raises:
        ConfigError: A user's code raised an error, or reads later tokens.
        RunError: The training failed, or this worker would train another model.
    """
    differs = [
        f"{name} is {here} there and {wanted.get(name)} here"
        for name, here in arithmetic().items()
        if here != wanted.get(name)
    ]
    if differs:
        raise RunError(f"the worker would train another model: {'; '.join(differs)}")
    with _one_at_a_time:
        # As everywhere: another number of threads gives other roundings.
        blas.use_threads(1)
        try:
            trial = as_record(order, Trial, "the trial")
            plugins.load_recorded(trial.plugins)
            with single_stream():
                outcome = train_trial(trial, stop)
        except LeakError:
            raise
        except (Exception, SystemExit) as error:
            # One line, since not every exception of a library or a plugin can be sent.
            if line := plugins.plugin_error(error):
                raise ConfigError(line) from None
            raise RunError(one_line(error) or repr(error)) from None
    return record_of(outcome)


@contextmanager
def worker_pool(size: int) -> Iterator[Any]:
    """Open a pool of processes that are killed when it is left."""
    if getattr(sys.modules["__main__"], "__file__", "") == "<stdin>":  # processes import the script
        raise RunError("processes cannot read standard input again: save the script as a file")
    # `active_children` also lists processes that somebody else has started.
    others = set(multiprocessing.active_children())
    # A fork would copy MLX without its threads. With the pool Python starts a tracker of resources.
    with _inherited():
        pool = _Pool(size, multiprocessing.get_context("spawn"), initializer=_begin_worker)
    try:
        yield pool
    except futures.BrokenExecutor as error:
        why = "a process that trains was killed, perhaps for memory; try"
        guard = "in a script the call must be under if __name__ == '__main__'"
        raise RunError(f"{why} --jobs 1; {KEPT}", f"{why} jobs=1; {guard}; {KEPT}") from error
    finally:
        for child in set(multiprocessing.active_children()) - others:
            # A pool's own shutdown would wait for the running trainings.
            child.kill()
        pool.shutdown(cancel_futures=True)


class _Pool(futures.ProcessPoolExecutor):
    def submit(self, *call: Any, **options: Any) -> Any:
        """Submit a call, for which a process may start."""
        with _inherited():
            return super().submit(*call, **options)


@contextmanager
def _inherited() -> Iterator[None]:
    """Start processes with one BLAS thread; signals reach only the parent, which ends them."""
    before = dict(os.environ)
    signals = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGHUP])
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name in _THREADS:
            os.environ.pop(name)
        os.environ.update(before)
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)


def _begin_worker() -> None:
    """Leave standard output to the command, and end with the parent, even if that was killed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    def end_with_parent() -> None:
        if parent := multiprocessing.parent_process():
            parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


@contextmanager
def _dask_client(address: str) -> Iterator[Any]:
    distributed = optional("distributed", "--on needs Dask: pip install 'mlx-attn[cluster]'")
    if not re.fullmatch(r"((tcp|tls|wss?|ucxx?)://)?[\w.\[\]:-]+:\d+", address):
        raise ConfigError(f"--on '{address}': a scheduler's address is like tcp://10.0.0.2:8786")
    for name in ("distributed", "distributed.client"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # real problems arrive as errors
    try:
        client = distributed.Client(address, timeout=CONNECT, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise RunError(
            f"no scheduler answers at {address}: start one with 'dask scheduler --host "
            "ADDRESS', and workers with 'dask worker SCHEDULER --host ADDRESS --nthreads 1'"
        ) from error
    try:
        with client:
            yield client
    except futures.CancelledError as error:
        # Nobody cancels but a client whose connection is lost.
        raise RunError(f"the scheduler at {address} is gone; {KEPT}") from error


def _is_unwanted() -> bool:
    """Return True if nobody waits any longer for the task that this thread of a Dask worker does.

    Dask cannot end a thread: a task that was cancelled, or whose scheduler is gone, ends itself.
    """
    import distributed

    worker = distributed.get_worker()
    task = worker.state.tasks[worker.get_current_task()]
    return task.state != "executing" or worker.status.name not in ("running", "paused")
