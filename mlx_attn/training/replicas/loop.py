"""The loop of several trainings: their reports, each with the replica that it is of.

Every replica follows the course of an ordinary training up to its next step, and waits there for
the others; then the step is launched for all that wait at the same one. Replicas that were saved at
different steps, as by a process that was killed while it saved, catch up first.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import mlx.core as mx

from mlx_attn.training.complaints import advised
from mlx_attn.training.log import Log, Number, Stopwatch
from mlx_attn.training.loop import course, never
from mlx_attn.training.replicas.launch import Launch
from mlx_attn.training.replicas.replica import Replica
from mlx_attn.training.reports import Failed, Report
from mlx_attn.training.trainer import Diverged


@dataclass(slots=True)
class _Going:
    """A replica on its course; `launched` is the step whose loss its log is to be told."""

    replica: Replica
    log: Log
    course: Iterator[Report | None]
    launched: tuple[Number, Number] | None = None
    waits: bool = False

    @property
    def step(self) -> int:
        return self.replica.progress.step

    def advance(self) -> Iterator[Report]:
        """What happens up to its next step, where it waits; it does not if there is none."""
        self.waits = False
        try:
            if self.launched:
                self.log.launched(self.launched)
            for report in self.course:
                if report is None:
                    self.waits = True
                    return
                yield report
        except Diverged as error:
            yield Failed(step=self.step, message=str(error))


def train_replicas(
    replicas: Sequence[Replica], launch: Launch, should_stop: Callable[[], bool] = never
) -> Iterator[tuple[Replica, Report]]:
    """Train every replica until a bound is reached, and yield what happens.

    Args:
        replicas: Their run directories are kept up to date.
        launch: Takes a step of each: `Together()` or `in_turn`.
        should_stop: Asked before every step; when it says so, all are saved and end.

    Raises:
        RunError: The disk cannot be written.
    """
    stops: list[bool] = []
    stopwatch = Stopwatch([replica.progress for replica in replicas])
    going = [_departing(replica, stopwatch, lambda: bool(stops)) for replica in replicas]
    mx.reset_peak_memory()
    with advised():
        while going:
            # Asked once for all, so that all are saved at the same step.
            stops += [True] if should_stop() else []
            for each in going:
                for report in [] if each.waits else each.advance():
                    yield each.replica, report
            going = [each for each in going if each.waits]
            _launch_hindmost(going, launch)


def _departing(replica: Replica, stopwatch: Stopwatch, should_stop: Callable[[], bool]) -> _Going:
    replica.model.train()
    log = Log(replica, stopwatch)
    return _Going(replica, log, course(replica, log, should_stop))


def _launch_hindmost(going: Sequence[_Going], launch: Launch) -> None:
    """Launch the next step of those that have the most steps to do."""
    first = min((each.step for each in going), default=0)
    hindmost = [each for each in going if each.step == first]
    if hindmost:
        launched = launch([each.replica for each in hindmost])
        for each, each.launched in zip(hindmost, launched, strict=True):
            each.waits = False
