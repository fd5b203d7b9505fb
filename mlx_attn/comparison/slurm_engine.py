"""Trials as jobs of SLURM, by submitit."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlx_attn.comparison.executors import Engine, Worker
from mlx_attn.comparison.plan import Trial
from mlx_attn.comparison.worker import train_order
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.records import Object

AT_ONCE = 64
"""Jobs that wait or run at once, unless `--jobs` says how many."""

_FOLDER = Path("runs") / "slurm"


class JobExecutor(Executor):
    """submitit's executors as one of `concurrent.futures`: its jobs become futures.

    Args:
        jobs: An executor of submitit.
    """

    def __init__(self, jobs: Any):
        self._jobs = jobs
        self._submitted: dict[Future[Any], Any] = {}

    def submit(self, function: Any, /, *arguments: Any, **options: Any) -> Future[Any]:
        """Submit a job."""
        future: Future[Any] = Future()
        self._submitted[future] = self._jobs.submit(function, *arguments, **options)
        return future

    def look(self) -> None:
        """Complete the futures of the jobs that ended; a job without a result was lost."""
        for future, job in list(self._submitted.items()):
            if not job.done():
                continue
            del self._submitted[future]
            try:
                future.set_result(job.result())
            except Exception:
                # The runner takes a TimeoutError for a lost worker and repeats the trial.
                future.set_exception(TimeoutError(f"job {job.job_id} ended without a result"))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Cancel all unfinished jobs."""
        for future, job in self._submitted.items():
            job.cancel(check=False)
            future.cancel()
        self._submitted.clear()


class SlurmEngine(Engine):
    """Jobs of SLURM, each of which trains one trial.

    Args:
        partition: Where jobs go; "" is SLURM's default. Its machines should be of one kind.
        jobs: Jobs that wait or run at once; 0 is `AT_ONCE`.
        executor: An executor of submitit; by default SLURM's.
    """

    patience = 5.0

    def __init__(self, partition: str, jobs: int, executor: Any = None):
        self._count = jobs or AT_ONCE
        self._jobs = executor or _slurm(partition)
        self._executor = JobExecutor(self._jobs)

    @property
    def size(self) -> int:
        """How many jobs wait or run at once."""
        return self._count

    @contextmanager
    def session(self, trials: Sequence[Trial]) -> Iterator[None]:
        """Open a session; cancel all unfinished jobs when it is left."""
        try:
            yield
        finally:
            self._executor.shutdown(cancel_futures=True)

    def workers(self) -> Sequence[Worker]:
        """Return a worker for each job that may wait or run."""
        self._executor.look()
        # No kinds: SLURM chooses the machine, so a partition should have only one kind.
        return [Worker(f"job {number}") for number in range(self._count)]

    def submit(self, worker: Worker, order: Object) -> Future[Object]:
        """Submit a job that trains."""
        # The worker is a place in the queue, so any job will do.
        return self._executor.submit(train_order, order)


def _slurm(partition: str) -> Any:
    try:
        import submitit
    except ImportError as error:
        raise ConfigError("--on slurm needs submitit: pip install 'mlx_attn[slurm]'") from error
    try:
        jobs = submitit.AutoExecutor(folder=_FOLDER, cluster="slurm")
    except RuntimeError as error:
        raise RunError(f"--on slurm: {error}") from error
    more = {"slurm_partition": partition} if partition else {}
    jobs.update_parameters(name="mlx-attn", cpus_per_task=1, **more)
    return jobs
