"""Trials in a pool of processes, and shared among the ranks of `mlx.launch`."""

import hashlib
import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mlx_attn import plugins
from mlx_attn.attention.attention import on_gpu
from mlx_attn.compare.plan import Trial, corpus_of
from mlx_attn.compare.result import Comparison, Tuning
from mlx_attn.compare.trial import Outcome, Store, train_together, train_trial
from mlx_attn.errors import RunError
from mlx_attn.training import replicas
from mlx_attn.training.config import Settings
from mlx_attn.training.distributed import SINGLE_PROCESS, Distributed, LostRank

MAX_TOGETHER = 8
"""Trials mapped over together: lost by one interruption, and in memory at the same time."""

_TICK = 0.5  # seconds between two exchanges of ranks
_KEPT = "what is finished is kept, the same command goes on"
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
class Tuned:
    """A learning rate is settled."""

    tuning: Tuning


@dataclass(frozen=True, slots=True)
class Planned:
    """How many seeds the verdict has, and the minutes that the rest is expected to take.

    `resolves` is the minimum detectable effect, in nats per token; None where nothing is known of
    the spread yet.
    """

    seeds: int
    minutes: float
    resolves: float | None


@dataclass(frozen=True, slots=True)
class Concluded:
    """The end of a comparison."""

    comparison: Comparison


ComparisonEvent = Began | Finished | Tuned | Planned | Concluded
Result = tuple[Trial, Outcome]


class Runner:
    """Trains trials in a pool of processes.

    Args:
        store: Where results are kept, and looked for first.
        size: Processes at once; 0 is one for every core, and one on a GPU.
        together: Whether trials that differ only in seeds and learning rates are one mapped step.
    """

    def __init__(self, store: Store, size: int = 0, together: bool = False):
        self.store, self.size, self._together = store, size or _default_jobs(), together
        self.mode = "as replicas" if together else "apart"

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
        batches = grouped(trials) if self._together else [[trial] for trial in trials]
        with _pool(min(self.size, len(batches) or 1)) as pool:
            with _worker_environment():
                futures = {pool.submit(_work, self.store.folder, batch): batch for batch in batches}
            left = set(futures)
            while left:
                done, left = wait(left, seconds, until)
                yield [(trial, self._result_of(f, trial)) for f in done for trial in futures[f]]

    def _result_of(self, future: Future[None], trial: Trial) -> Outcome:
        try:
            future.result()
        except Exception as error:
            message = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            raise RunError(
                f"the training of '{trial.arm}', seed {trial.seed}, failed: {message}; {_KEPT}"
            ) from error
        return self.store[trial]


def _default_jobs() -> int:
    return 1 if on_gpu() else os.cpu_count() or 1


def grouped(trials: Sequence[Trial]) -> list[list[Trial]]:
    """Trials that differ only in seeds and learning rates together, `MAX_TOGETHER` at a time.

    With dropout each one is alone: replicas would share one stream of random numbers.
    """

    def form(trial: Trial) -> str:
        if trial.settings.get("drop_rate"):
            return trial.digest
        shared = {k: v for k, v in trial.settings.items() if k not in replicas.VARIED}
        return json.dumps([shared, trial.text], sort_keys=True)

    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(form(trial), []).append(trial)
    return [
        g[i : i + MAX_TOGETHER] for g in groups.values() for i in range(0, len(g), MAX_TOGETHER)
    ]


@contextmanager
def _pool(size: int) -> Iterator[ProcessPoolExecutor]:
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
def _worker_environment() -> Iterator[None]:
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


def _work(folder: Path, trials: Sequence[Trial]) -> None:
    """Train in a worker, with the user's files; several trials are one mapped step."""
    store = Store(folder)
    for trial in trials:
        plugins.load_recorded(trial.plugins)
    try:
        if len(trials) > 1:
            for trial, outcome in train_together(trials):
                store[trial] = outcome
        elif outcome := train_trial(trials[0]):
            store[trials[0]] = outcome
    except Exception as error:
        if line := plugins.plugin_error(error):
            raise RunError(line) from error
        raise


class DistributedRunner(Runner):
    """The runners of all ranks, which make the same comparison and share its trials."""

    def __init__(self, runner: Runner, ranks: Distributed):
        self.store, self.mode = runner.store, runner.mode
        self.size = sum(ranks.gather(runner.size))
        self._runner, self._ranks = runner, ranks

    def missing(self, trials: Iterable[Trial]) -> list[Trial]:
        """What no rank has finished; what some have is in every rank's store afterwards.

        Where two have different records of a trial, that of the lower rank counts.
        """
        wanted = {trial.digest: trial for trial in trials}
        with _says_what_is_kept():
            self._ranks.check_same("setting, text, version or kind of device", list(wanted))
            by_rank = self._ranks.gather([self._mark(trial) for trial in wanted.values()])
            marks = dict(zip(wanted, zip(*by_rank, strict=True), strict=True))
            # The lowest rank that has a record gives it, where not all have the same.
            givers = {
                d: next(r for r, m in enumerate(of) if m) for d, of in marks.items() if any(of)
            }
            mine = [d for d, r in givers.items() if r == self._ranks.rank and len({*marks[d]}) > 1]
            for texts in self._ranks.gather({d: self.store.text(wanted[d]) for d in mine}):
                self._keep(texts, wanted)
        return [trial for digest, trial in wanted.items() if digest not in givers]

    def __call__(self, trials: Iterable[Trial]) -> Generator[Result, None, None]:
        """Train this rank's share of the missing trials; yield what is finished on any rank."""
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
                self._keep(texts, wanted)
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

    def _mark(self, trial: Trial) -> str:
        """The same for the same record; "" where there is none."""
        if trial not in self.store:
            return ""
        return hashlib.blake2b(self.store.text(trial).encode(), digest_size=12).hexdigest()

    def _keep(self, texts: Mapping[str, str], trials: Mapping[str, Trial]) -> None:
        for digest, text in texts.items():
            self.store.keep(trials[digest], text)


@contextmanager
def _says_what_is_kept() -> Iterator[None]:
    try:
        yield
    except LostRank as lost:
        raise LostRank(f"{lost}; finished trainings are kept: the same command goes on") from lost


def make_runner(
    directory: Path,
    jobs: int,
    together: str,
    example: Callable[[], Settings | None],
    ranks: Distributed = SINGLE_PROCESS,
) -> Runner:
    """The runner that keeps trials in `trainings` of a directory, or in `replicas` if together.

    Args:
        directory: Of the comparison.
        jobs: Processes at once on every rank; 0 is one for every core, and one on a GPU.
        together: "on", "off" or "auto": as in this directory before; else on where one process
            trains on a GPU and a short trial finds mapping faster.
        example: Settings of the first trial; None where there is none.
        ranks: Processes that share the trials; rank 0 decides.
    """
    size = jobs or _default_jobs()
    mapped = ranks.first(not ranks.rank and _trains_together(directory, size, together, example))
    runner = Runner(Store(directory / ("replicas" if mapped else "trainings")), size, mapped)
    return DistributedRunner(runner, ranks) if ranks.size > 1 else runner


def _trains_together(
    directory: Path, size: int, together: str, example: Callable[[], Settings | None]
) -> bool:
    if together == "auto":
        for folder in ("trainings", "replicas"):
            if any((directory / folder).glob("*.json")):
                return folder == "replicas"
        if size > 1 or not on_gpu():
            return False
    settings = example() if together != "off" else None
    if settings is None:
        return together == "on"
    seeds = replicas.with_seeds(settings, MAX_TOGETHER)
    if together == "on":
        replicas.check_alike(seeds)
        return True
    return not settings.model.get("drop_rate") and replicas.pays_off(seeds, corpus_of(settings))
