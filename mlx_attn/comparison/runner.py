"""Has the missing trials of a comparison trained by an engine, and keeps their records.

Workers may come and go. A trial whose worker is lost is repeated; all trials of one seed are
trained on one kind of machine, so that no difference between two arms is one between machines.
`ExportRunner` has them trained by `mlx-attn trial`, through files.
"""

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Future, wait
from dataclasses import dataclass
from math import inf
from pathlib import Path

from mlx_attn.comparison.executors import KEPT, Engine, LocalEngine, Notice, Worker
from mlx_attn.comparison.plan import Trial
from mlx_attn.comparison.result import Comparison, TrialResult, Tuning
from mlx_attn.comparison.trial import Outcome, Store, outcome_from, write_object
from mlx_attn.comparison.worker import ORDER_FILE, RECORD_FILE, order_for
from mlx_attn.errors import RunError
from mlx_attn.records import Object, read_record

REPEATS = 3  # how often a trial is trained again after its worker was lost
GRACE = 60.0  # seconds that seeds wait for a kind of machine that went away


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


class Placement:
    """Chooses the next trial of a worker: on which kind of machine each trial is trained.

    Trials of one seed are compared in pairs, so they are trained on one kind of machine; if equal
    seconds count, all are, because seconds of two kinds are different budgets.

    Args:
        notice: Takes a line when seeds have to change their kind of machine.
        clock: Returns the seconds since some time.
    """

    def __init__(self, notice: Notice, clock: Callable[[], float] = time.monotonic):
        self.one_kind = False  # whether all trials have to be trained on one kind of machine
        self._notice, self._clock = notice, clock
        self._kinds: dict[int | None, str] = {}  # by seed; None for all seeds
        self._seen: dict[str, float] = {}  # when each kind had a worker for the last time

    def remember(self, trial: Trial, outcome: Outcome) -> None:
        """Keep on which kind of machine a finished trial was trained."""
        if isinstance(outcome, TrialResult) and outcome.kind:
            self._kinds.setdefault(self._group(trial), outcome.kind)

    def see(self, workers: Sequence[Worker]) -> None:
        """Take note of the workers that there are now."""
        now = self._clock()
        self._seen |= {worker.kind: now for worker in workers}
        kinds = Counter(worker.kind for worker in workers)
        if self.one_kind and kinds and self._is_free(None):
            # The commonest kind trains everything.
            ((kind, _),) = kinds.most_common(1)
            self._assign(None, kind)
            if others := [other for other in kinds if other != kind]:
                self._notice(
                    f"equal seconds count on one kind of machine, {kind}: workers of "
                    f"{'; '.join(others)} take no part (--budgets steps,params uses all)"
                )

    def choose(self, waiting: Iterable[Trial], worker: Worker) -> Trial | None:
        """Return the first trial that may be trained there, or None."""
        for trial in waiting:
            group = self._group(trial)
            # An engine that reports no kinds has only one.
            if not worker.kind or self._kinds.get(group) == worker.kind:
                return trial
            # The first worker that asks decides for the whole seed.
            if not self.one_kind and self._is_free(group):
                self._assign(group, worker.kind)
                return trial
        return None

    def _group(self, trial: Trial) -> int | None:
        return None if self.one_kind else trial.seed

    def _is_free(self, group: int | None) -> bool:
        """Return whether a group of trials may be given any kind of machine now."""
        kind = self._kinds.get(group)
        if kind is None:
            return True
        # A kind that went away keeps its seeds for a while, in case its workers come back.
        return self._clock() - self._seen.setdefault(kind, self._clock()) > GRACE

    def _assign(self, group: int | None, kind: str) -> None:
        before = self._kinds.get(group)
        if before is not None and kind and before != kind:
            seeds = "all seeds" if group is None else f"seed {group}"
            self._notice(f"no worker of {before} is left: {seeds} goes on with {kind}")
        self._kinds[group] = kind


class Runner:
    """Trains trials.

    Args:
        store: Where results are kept, and looked for first.
        size: Processes of this machine; 0 is one for every core, and one on a GPU.
        engine: Where trials run, if not in such processes.
    """

    def __init__(self, store: Store, size: int = 0, engine: Engine | None = None):
        self.store = store
        self.engine = engine or LocalEngine(size)
        self.placement = Placement(lambda line: self.engine.notice(line))
        self.until = inf  # by `time.monotonic`: no trial is started after it
        # The trials of the stage that is being trained.
        self._waiting: list[Trial] = []
        self._running: dict[Future[Object], tuple[Trial, Worker]] = {}
        self._losses = Counter[Trial]()

    @property
    def size(self) -> int:
        """How many trials run at once."""
        return self.engine.size

    def missing(self, trials: Iterable[Trial]) -> list[Trial]:
        """Return the trials that the store lacks, each once."""
        # Arms with equal settings share one trial.
        wanted = {trial.digest: trial for trial in trials}
        return [trial for trial in wanted.values() if trial not in self.store]

    def __call__(self, trials: Iterable[Trial]) -> Generator[Result, None, None]:
        """Train the missing ones, and yield each as it is finished.

        Closing the generator cancels the running trials; finished ones are kept.
        """
        trials = list(trials)
        self._waiting, self._running = self.missing(trials), {}
        self._losses.clear()
        if not self._waiting:
            return
        # Seeds that are partly trained stay on the kind of machine that trained them.
        for trial in trials:
            if trial in self.store:
                self.placement.remember(trial, self.store[trial])
        with self.engine.session(self._waiting):
            try:
                yield from self._results()
            finally:
                for future in self._running:
                    future.cancel()

    def _results(self) -> Generator[Result, None, None]:
        while self._running or (self._waiting and time.monotonic() < self.until):
            # After `until` nothing starts, but running trials may still end.
            if time.monotonic() < self.until:
                self._start()
            for future in self._done():
                trial, worker = self._running.pop(future)
                if (outcome := self._outcome(future, trial, worker)) is not None:
                    # Stored before it is reported, so that no error after this loses the trial.
                    self.store[trial] = outcome
                    self.placement.remember(trial, outcome)
                    yield trial, outcome

    def _start(self) -> None:
        """Give every idle worker a trial that may run on its kind of machine."""
        busy = {worker for _, worker in self._running.values()}
        workers = self.engine.workers()
        self.placement.see(workers)
        for worker in workers:
            if worker not in busy and (trial := self.placement.choose(self._waiting, worker)):
                self._waiting.remove(trial)
                self._running[self.engine.submit(worker, order_for(trial))] = trial, worker

    def _done(self) -> Sequence[Future[Object]]:
        """Wait for trials that end, or whose workers are gone."""
        if not self._running:
            # Nothing runs, so there is nothing to wait for but workers.
            time.sleep(self.engine.patience or 0.0)
            return []
        done, _ = wait(self._running, self.engine.patience, FIRST_COMPLETED)
        ended = [future for future in done if not future.cancelled()]
        if any(isinstance(future.exception(), BrokenExecutor) for future in ended):
            done, _ = wait(self._running)  # a broken pool ends all of them
        there = set(self.engine.workers())
        # Their futures would never end.
        gone = [f for f, (_, worker) in self._running.items() if worker not in there]
        for future in gone:
            future.cancel()
        return [*{*done, *gone}]

    def _outcome(self, future: Future[Object], trial: Trial, worker: Worker) -> Outcome | None:
        """Return what became of a trial; None if it has to be trained again."""
        try:
            answer = future.result(timeout=0)
        except (Exception, CancelledError) as error:
            if not self.engine.is_loss(error):
                raise _failure(trial, str(error) or type(error).__name__) from error
            answer: Object = {"stopped": True}
        if answer.get("stopped"):
            # The trial is not to blame for a worker that is lost, or about to end.
            self._losses[trial] += 1
            if self._losses[trial] > REPEATS:
                raise _failure(trial, f"its worker was lost {REPEATS + 1} times")
            self.engine.recover()
        elif reason := answer.get("failed"):
            raise _failure(trial, reason)
        # The worker computed the digest from its own reading of the order.
        elif answer.get("digest") == trial.digest:
            return outcome_from(answer, trial, f"the answer of {worker.name}")
        else:
            self.engine.leave_out(worker, answer.get("unfit") or "it trained something else")
        self._waiting.insert(0, trial)
        return None


def _failure(trial: Trial, reason: str) -> RunError:
    line = (reason.strip().splitlines() or ["?"])[-1]
    return RunError(f"the training of '{trial.arm}', seed {trial.seed}, failed: {line}; {KEPT}")


class Exported(Exception):
    """Trials were written to files, and are not trained yet; `count` is how many."""

    def __init__(self, count: int):
        super().__init__(f"{count} trials were written")
        self.count = count


class ExportRunner(Runner):
    """Writes the missing trials to files, and reads the records that were added to the folder.

    Args:
        store: Where results are kept.
        folder: Of the files.
    """

    def __init__(self, store: Store, folder: Path):
        super().__init__(store)
        self.folder = folder

    def missing(self, trials: Iterable[Trial]) -> list[Trial]:
        """Take up the records that there are, and return the trials that the store lacks."""
        missing = super().missing(trials)
        for trial in missing:
            # A record that came back from wherever the trial was trained.
            record = self.folder / f"{trial.digest}{RECORD_FILE}"
            if record.exists():
                self.store[trial] = outcome_from(read_record(record), trial, str(record))
                for file in (record, self.folder / f"{trial.digest}{ORDER_FILE}"):
                    file.unlink(missing_ok=True)
        return [trial for trial in missing if trial not in self.store]

    def __call__(self, trials: Iterable[Trial]) -> Generator[Result, None, None]:
        """Write the missing trials.

        Raises:
            Exported: There were some.
        """
        missing = self.missing(trials)
        for trial in missing:
            write_object(self.folder / f"{trial.digest}{ORDER_FILE}", order_for(trial))
        if missing:
            # The rest of the comparison needs these results, so it ends here.
            raise Exported(len(missing))
        # A generator even so: the records were taken up by `missing`.
        yield from ()
