"""Has the missing trials of a comparison trained by an engine, and keeps their records.

Workers may come and go. A trial whose worker is lost is repeated; all trials of one seed are
trained on one kind of machine, so that no difference between two arms is one between machines.
`ExportRunner` has them trained by `mlx-attn trial`, through files.
"""

import json
import time
from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Future, wait
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from mlx_attn.comparison.executors import KEPT, Engine, LocalEngine, Worker
from mlx_attn.comparison.machines import Placement
from mlx_attn.comparison.plan import Trial
from mlx_attn.comparison.result import Comparison, Tuning
from mlx_attn.comparison.trial import Outcome, Store, outcome_from
from mlx_attn.comparison.worker import ORDER_FILE, RECORD_FILE, order_for
from mlx_attn.errors import RunError
from mlx_attn.files import write_text
from mlx_attn.records import Object, read_record

REPEATS = 3  # how often a trial is trained again after its worker was lost


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
    """Trains trials.

    Args:
        store: Where results are kept, and looked for first.
        size: Processes of this machine; 0 is one for every core, and one on a GPU.
        engine: Where trials run, if not in such processes.
    """

    def __init__(self, store: Store, size: int = 0, engine: Engine | None = None):
        self.store = store
        self.engine = engine or LocalEngine(size)
        # Whether all trials have to be trained on one kind of machine, because their speeds count,
        # rather than only one seed's.
        self.one_kind = False
        self.until = inf  # by `time.monotonic`: no trial is started after it
        self._placement = Placement()

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
        missing = self.missing(trials)
        if not missing:
            return
        self._placement.one_kind = self.one_kind
        self._placement.notice = self.engine.notice
        # Seeds that are partly trained stay on the kind of machine that trained them.
        for trial in trials:
            if trial in self.store:
                self._placement.remember(trial, self.store[trial])
        with self.engine.session(missing):
            stage = _Stage(self.engine, self.store, self._placement, missing, self.until)
            yield from stage.results()


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
            text = json.dumps(order_for(trial), indent=1, sort_keys=True) + "\n"
            write_text(self.folder / f"{trial.digest}{ORDER_FILE}", text)
        if missing:
            # The rest of the comparison needs these results, so it ends here.
            raise Exported(len(missing))
        # A generator even so: the records were taken up by `missing`.
        yield from ()


@dataclass
class _Stage:
    """The trials of one stage, waiting and running."""

    engine: Engine
    store: Store
    placement: Placement
    waiting: list[Trial]
    until: float
    running: dict[Future[Object], tuple[Trial, Worker]] = field(default_factory=dict)
    losses: Counter[Trial] = field(default_factory=Counter)

    def results(self) -> Generator[Result, None, None]:
        try:
            while self.running or (self.waiting and time.monotonic() < self.until):
                # After `until` nothing starts, but running trials may still end.
                if time.monotonic() < self.until:
                    self._start()
                for future in self._done():
                    trial, worker = self.running.pop(future)
                    if (outcome := self._outcome(future, trial, worker)) is not None:
                        # Stored before it is reported, so that no error after this loses the trial.
                        self.store[trial] = outcome
                        self.placement.remember(trial, outcome)
                        yield trial, outcome
        finally:
            for future in self.running:
                future.cancel()

    def _start(self) -> None:
        """Give every idle worker a trial that may run on its kind of machine."""
        busy = {worker for _, worker in self.running.values()}
        workers = self.engine.workers()
        self.placement.see(workers)
        for worker in workers:
            if worker not in busy and (trial := self.placement.choose(self.waiting, worker)):
                self.waiting.remove(trial)
                self.running[self.engine.submit(worker, order_for(trial))] = trial, worker

    def _done(self) -> Sequence[Future[Object]]:
        """Wait for trials that end, or whose workers are gone."""
        if not self.running:
            # Nothing runs, so there is nothing to wait for but workers.
            time.sleep(self.engine.patience or 0.0)
            return []
        done, _ = wait(self.running, self.engine.patience, FIRST_COMPLETED)
        ended = [future for future in done if not future.cancelled()]
        if any(isinstance(future.exception(), BrokenExecutor) for future in ended):
            done, _ = wait(self.running)  # a broken pool ends all of them
        there = set(self.engine.workers())
        # Their futures would never end.
        gone = [f for f, (_, worker) in self.running.items() if worker not in there]
        for future in gone:
            future.cancel()
        return [*{*done, *gone}]

    def _outcome(self, future: Future[Object], trial: Trial, worker: Worker) -> Outcome | None:
        """Return what became of a trial; None if it has to be trained again."""
        try:
            answer = future.result(timeout=0)
        except (Exception, CancelledError) as error:
            # The trial is not to blame for a lost worker and gets another chance.
            if self.engine.is_loss(error):
                self._lose(trial)
                return None
            raise _failure(trial, str(error) or type(error).__name__) from error
        if answer.get("stopped"):  # its worker is about to end
            self._lose(trial)
            return None
        if reason := answer.get("failed"):
            raise _failure(trial, reason)
        # The worker computed the digest from its own reading of the order.
        if answer.get("digest") == trial.digest:
            return outcome_from(answer, trial, f"the answer of {worker.name}")
        self.engine.leave_out(worker, answer.get("unfit") or "it trained something else")
        self.waiting.insert(0, trial)
        return None

    def _lose(self, trial: Trial) -> None:
        """Queue a trial again whose worker was lost, unless that happened too often."""
        self.losses[trial] += 1
        if self.losses[trial] > REPEATS:
            lost = [other for other, times in self.losses.items() if times > REPEATS]
            times = f"its worker was lost {REPEATS + 1} times"
            raise _failure(lost[0], times)
        self.engine.recover()
        self.waiting.insert(0, trial)


def _failure(trial: Trial, reason: str) -> RunError:
    line = (reason.strip().splitlines() or ["?"])[-1]
    return RunError(f"the training of '{trial.arm}', seed {trial.seed}, failed: {line}; {KEPT}")
