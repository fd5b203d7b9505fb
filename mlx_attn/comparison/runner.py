"""Has the missing trials of a comparison trained by workers, and keeps their records.

A worker gets an order and returns a record, both as JSON objects. An order names the text and the
user's files by path and digest: they are not sent.
"""

import threading
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Future, as_completed
from dataclasses import asdict
from math import isfinite

from mlx_attn import plugins
from mlx_attn.comparison.executors import given_up, open_executor, trials_at_once
from mlx_attn.comparison.plan import Trial
from mlx_attn.comparison.result import TrialResult
from mlx_attn.comparison.trial import Outcome, Store, outcome_from, record_of, train_trial
from mlx_attn.errors import RunError
from mlx_attn.machine import blas
from mlx_attn.machine.facts import arithmetic
from mlx_attn.machine.streams import single_stream
from mlx_attn.records import Object, as_record

Result = tuple[Trial, Outcome]
KEPT = "finished trainings are kept: the same command continues"
REPEATS = 3  # how often trials are trained again after a process of this machine was killed


# MLX's state and the number of threads belong to the process, so its trials take turns.
_one_at_a_time = threading.Lock()


def order_for(trial: Trial) -> Object:
    """Return all that a worker needs to train a trial."""
    return {"trial": asdict(trial), "arithmetic": arithmetic()}


def train_order(order: Object) -> Object:
    """Train a trial on one thread of this worker, and return its record with its digest.

    Raises:
        RunError: This worker would train another model, and the error names what differs; or the
            training failed.
    """
    wanted = order["arithmetic"]
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
            trial = as_record(order["trial"], Trial, "the trial")
            plugins.load_recorded(trial.plugins)
            outcome = single_stream(train_trial)(trial, given_up())
        except Exception as error:
            # One line, since not every exception of a library or a plugin can be sent.
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise RunError(plugins.plugin_error(error) or lines[-1]) from None
    # A digest computed here proves that this worker trained the trial that was ordered.
    return {"digest": trial.digest, **record_of(outcome)}


class Runner:
    """Trains trials.

    Args:
        store: Where results are kept, and looked for first.
        jobs: Processes of this machine; 0 is one for every core, and one on a GPU.
        on: The address of a Dask scheduler whose workers train instead.
    """

    def __init__(self, store: Store, jobs: int = 0, on: str = ""):
        self.store, self._jobs, self._on = store, jobs, on
        self.size = trials_at_once(jobs, on)

    def missing(self, trials: Iterable[Trial]) -> list[Trial]:
        """Return the trials that the store lacks, each once."""
        # Arms with equal settings share one trial.
        wanted = {trial.digest: trial for trial in trials}
        return [trial for trial in wanted.values() if trial not in self.store]

    def __call__(self, trials: Iterable[Trial]) -> Generator[Result, None, None]:
        """Train the missing ones, and yield each as it is finished.

        Closing the generator ends the running trials of this machine; finished ones are kept.

        Raises:
            RunError: A training failed, a worker refused it, or workers were lost too often.
        """
        trials, losses = list(trials), 0
        while missing := self.missing(trials):
            try:
                for result in self._train(missing):
                    losses = 0
                    yield result
            except BrokenExecutor as error:
                # A pool that loses one process loses all; Dask only the trial of the lost worker.
                losses += 1
                if losses > REPEATS:
                    message = f"processes that train were killed {losses} times in a row"
                    raise RunError(
                        f"{message}, perhaps for memory; try --jobs 1; {KEPT}"
                    ) from error

    def _train(self, trials: Sequence[Trial]) -> Generator[Result, None, None]:
        with open_executor(self._jobs, self._on) as executor:
            ordered = {executor.submit(train_order, order_for(trial)): trial for trial in trials}
            for future in as_completed(ordered):
                trial = ordered[future]
                outcome = self._outcome(future, trial)
                # Stored before it is reported, so that no error after this loses the trial.
                self.store[trial] = outcome
                yield trial, outcome

    def _outcome(self, future: Future[Object], trial: Trial) -> Outcome:
        """Return what became of a trial, checked."""
        try:
            answer = future.result()
            if answer["digest"] != trial.digest:
                raise RunError("its worker trained something else")
            outcome = outcome_from(answer, trial, "the worker's answer")
            if isinstance(outcome, TrialResult) and (
                outcome.seed != trial.seed or not isfinite(outcome.val_loss)
            ):
                raise RunError(f"seed {outcome.seed} ended with the loss {outcome.val_loss}")
        except BrokenExecutor:
            raise
        except CancelledError as error:
            # Nobody cancels but a client whose connection is lost.
            raise RunError(f"the scheduler at {self._on} is gone; {KEPT}") from error
        except Exception as error:
            failed = f"the training of '{trial.arm}', seed {trial.seed}, failed"
            raise RunError(f"{failed}: {error or type(error).__name__}; {KEPT}") from error
        return outcome
