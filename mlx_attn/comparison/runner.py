"""Trials in a pool of processes, and shared among the ranks of `mlx.launch`."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mlx_attn import plugins
from mlx_attn.comparison.plan import Trial
from mlx_attn.comparison.result import Comparison, Tuning
from mlx_attn.comparison.trial import Outcome, Store, train_trial
from mlx_attn.device import on_gpu
from mlx_attn.errors import RunError
from mlx_attn.files import write_text
from mlx_attn.training.distributed import Distributed, LostRank

_TICK = 0.5  # seconds between two exchanges of ranks
KEPT = "finished trainings are kept: the same command continues"
_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


@dataclass(frozen=True, slots=True)
class Began:
    """A stage of a comparison begins; `stored` of its trials are finished already."""

    stage: str
    trainings: int
    stored: int


@dataclass(frozen=True, slots=True)
class Finished:
    """A trial ended; `left` others of its stage are not finished and take about `seconds_left`."""

    trial: Trial
    outcome: Outcome
    left: int
    seconds_left: float


@dataclass(frozen=True, slots=True)
class Planned:
    """How many seeds the verdict has, and the minutes that the rest is expected to take.

    `resolves` is the minimum detectable effect, in nats per token; None where nothing is known of
    the spread yet.
    """

    seeds: int
    minutes: float
    resolves: float | None


ComparisonEvent = Began | Finished | Tuning | Planned | Comparison
"""What a comparison yields; a settled learning rate and the result stand for themselves."""
Result = tuple[Trial, Outcome]


class Runner:
    """Trains trials in a pool of processes.

    Args:
        store: Where results are kept, and looked for first.
        size: Processes at once; 0 is one for every core, and one on a GPU.
    """

    def __init__(self, store: Store, size: int = 0):
        self.store = store
        self.size = size or (1 if on_gpu() else os.cpu_count() or 1)

    def missing(self, trials: Iterable[Trial]) -> list[Trial]:
        """Those that the store lacks, each once."""
        wanted = {trial.digest: trial for trial in trials}
        return [trial for trial in wanted.values() if trial not in self.store]

    def __call__(self, trials: Iterable[Trial]) -> Generator[Result, None, None]:
        """Train the missing ones, and yield each as it is finished.

        Closing the generator kills the running trials; finished ones are kept.
        """
        for finished in self.rounds(self.missing(trials)):
            yield from finished

    def rounds(
        self, trials: Sequence[Trial], seconds: float | None = None
    ) -> Generator[list[Result], None, None]:
        """Train, and yield every few seconds, or as soon as one ends, what has been finished."""
        until = FIRST_COMPLETED if seconds is None else FIRST_EXCEPTION
        with worker_pool(min(self.size, len(trials) or 1)) as pool:
            with worker_environment():
                futures = {pool.submit(_work, self.store.folder, trial): trial for trial in trials}
            left = set(futures)
            while left:
                done, left = wait(left, seconds, until)
                yield [(futures[f], self._result_of(f, futures[f])) for f in done]

    def _result_of(self, future: Future[None], trial: Trial) -> Outcome:
        try:
            future.result()
        except Exception as error:
            message = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            raise RunError(
                f"the training of '{trial.arm}', seed {trial.seed}, failed: {message}; {KEPT}"
            ) from error
        return self.store[trial]


@contextmanager
def worker_pool(size: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of spawned processes that are killed when it is left, finished or interrupted."""
    others = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(size, context, initializer=_begin_worker)
    try:
        yield pool
    finally:
        for child in set(multiprocessing.active_children()) - others:
            child.kill()
        pool.shutdown(cancel_futures=True)


@contextmanager
def worker_environment() -> Iterator[None]:
    """What workers inherit: one BLAS thread each, and Ctrl-C left to the parent."""
    before = {name: os.environ.get(name) for name in _THREADS}
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
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    def end_with_parent() -> None:
        if parent := multiprocessing.parent_process():
            parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def _work(folder: Path, trial: Trial) -> None:
    """Train in a worker, with the user's files."""
    plugins.load_recorded(trial.plugins)
    try:
        if outcome := train_trial(trial):
            Store(folder)[trial] = outcome
    except Exception as error:
        if line := plugins.plugin_error(error):
            raise RunError(line) from error
        raise


class DistributedRunner(Runner):
    """The runners of all ranks, which make the same comparison and share its trials."""

    def __init__(self, runner: Runner, ranks: Distributed):
        self.store = runner.store
        self.size = sum(ranks.gather(runner.size))
        self._runner, self._ranks = runner, ranks

    def missing(self, trials: Iterable[Trial]) -> list[Trial]:
        """What no rank has finished; what some have is in every rank's store afterwards.

        Where two have different records of a trial, that of the lower rank counts.
        """
        wanted = {trial.digest: trial for trial in trials}
        own = {d: self.store.text(t) for d, t in wanted.items() if t in self.store}
        with _says_what_is_kept():
            self._ranks.check_same("setting, text, version or kind of device", list(wanted))
            by_rank = self._ranks.gather(own)
        known = {digest: text for texts in reversed(by_rank) for digest, text in texts.items()}
        for digest, text in known.items():
            if own.get(digest) != text:
                write_text(self.store.path(wanted[digest]), text)
        return [trial for digest, trial in wanted.items() if digest not in known]

    def __call__(self, trials: Iterable[Trial]) -> Generator[Result, None, None]:
        """Train this rank's share of the missing trials; yield those finished on any rank."""
        left = {trial.digest: trial for trial in trials}
        working = self._runner.rounds(self._ranks.share([*left.values()]), _TICK)
        try:
            while left:
                for digest in self._exchange(working, left):
                    trial = left.pop(digest)
                    yield trial, self.store[trial]
        finally:
            working.close()

    def _exchange(
        self, working: Generator[list[Result], None, None], wanted: Mapping[str, Trial]
    ) -> list[str]:
        """Digests of the trials finished on any rank since the last time; all ranks keep them."""
        own, failure = self._finished(working)
        with _says_what_is_kept():
            news = self._ranks.gather([own, failure])
        for rank, (texts, failure) in enumerate(news):
            if rank != self._ranks.rank:
                for digest, text in texts.items():
                    write_text(self.store.path(wanted[digest]), text)
                failure = failure and f"rank {rank}: {failure}"
            if failure:
                raise RunError(failure)
        return [digest for texts, _ in news for digest in texts]

    def _finished(self, working: Generator[list[Result], None, None]) -> tuple[dict[str, str], str]:
        """Records of what was finished here, and why no more can be."""
        try:
            results = next(working, None)
        except RunError as error:
            return {}, str(error)
        if results is None:
            time.sleep(_TICK)  # nothing left here, but other ranks still train
        return {trial.digest: self.store.text(trial) for trial, _ in results or ()}, ""


@contextmanager
def _says_what_is_kept() -> Iterator[None]:
    try:
        yield
    except LostRank as lost:
        raise LostRank(f"{lost}; {KEPT}") from lost
