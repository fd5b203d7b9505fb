"""The log of one training: reads losses, keeps time, and makes the reports of it."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import mlx.core as mx

from mlx_attn.arrays import count_parameters
from mlx_attn.training.checkpoint import Progress
from mlx_attn.training.distributed import LostRank
from mlx_attn.training.events import Ended, Evaluated, Event, Started, Stepped, Tracked
from mlx_attn.training.trainer import Trainer, translate_mlx_errors


@runtime_checkable
class Number(Protocol):
    """A number on its way to being computed, such as an array of one."""

    def item(self) -> Any:
        """The number; waits for it."""
        ...


class Stopwatch:
    """Measures time in laps, each of which is training or a pause, for all that train together.

    Pauses are validating, saving, showing, and the first step, which compiles. Only training counts
    for tokens per second.
    """

    def __init__(self, timed: Sequence[Progress]):
        self.timed = timed
        self._last = time.perf_counter()

    def train(self) -> None:
        """The time since the last lap was training."""
        seconds = self._lap()
        for progress in self.timed:
            progress.training_seconds += seconds

    def pause(self) -> None:
        """The time since the last lap was not training."""
        self._lap()

    def _lap(self) -> float:
        now = time.perf_counter()
        seconds, self._last = now - self._last, now
        for progress in self.timed:
            progress.seconds += seconds
        return seconds


class Monitor:
    """What the loop knows of a training besides the training itself.

    Args:
        trainer: Of which training.
        stopwatch: Measures its time; trainings that take their steps together share one.
    """

    def __init__(self, trainer: Trainer, stopwatch: Stopwatch | None = None):
        self.trainer, self.progress = trainer, trainer.progress
        self._stopwatch = stopwatch or Stopwatch([trainer.progress])
        self._losses: list[float] = []
        self._unread: tuple[int, Number, Number] | None = None
        self._norm = 0.0
        self._warm = False
        self._reported = self._timed()

    @property
    def unreported(self) -> bool:
        """Whether there was a step since the last report of one."""
        return bool(self._losses) or self._unread is not None

    def launched(self, result: tuple[Number, Number]) -> None:
        """Take note of a new step, and read the one before it."""
        self._read()
        self._unread = (self.progress.step, *result)
        if self._warm:
            self._stopwatch.train()
            self.progress.timed_steps += 1
        else:
            self._read()
            self._warm = True
            self.pause()

    def started(self) -> Started:
        """The report that opens a training."""
        trainer = self.trainer
        return Started(
            variant=trainer.settings.variant,
            step=self.progress.step,
            steps=trainer.steps,
            params=count_parameters(trainer.model),
            tokens_per_step=trainer.tokens_per_step,
            run=self._run(),
        )

    def stepped(self) -> Stepped:
        """The report of the steps since the last such report."""
        self._read()
        trainer, progress = self.trainer, self.progress
        self._stopwatch.train()
        progress.peak_memory = max(progress.peak_memory, mx.get_peak_memory())
        losses, self._losses = self._losses, []
        return Stepped(
            step=progress.step,
            steps=trainer.steps,
            tokens=progress.step * trainer.tokens_per_step,
            loss=sum(losses) / len(losses),
            grad_norm=self._norm,
            lr=trainer.learning_rate,
            tok_s=self._speed_since_report(),
            peak_memory=progress.peak_memory,
            seconds=progress.seconds,
            seconds_left=self._seconds_left(),
        )

    def evaluated(self) -> Evaluated:
        """Validate, and report it.

        Raises:
            RunError: The loss is not finite.
        """
        trainer, progress = self.trainer, self.progress
        evaluation, best = trainer.evaluate()
        self.pause()
        return Evaluated(
            step=progress.step,
            tokens=progress.step * trainer.tokens_per_step,
            evaluation=evaluation,
            best=best,
            seconds=progress.seconds,
        )

    def tracked(self) -> Tracked:
        """The report of the heads' matrices, measured now that the loss is known to be finite."""
        self._read()
        self._stopwatch.train()
        tracked = self.trainer.track()
        self.pause()
        return tracked

    def ended(self, reason: str) -> Ended:
        """The report that closes a training."""
        trainer, progress = self.trainer, self.progress
        return Ended(
            variant=trainer.settings.variant,
            steps=progress.step,
            tokens=progress.step * trainer.tokens_per_step,
            evaluation=progress.best,
            params=count_parameters(trainer.model),
            tok_s=self._speed(progress.timed_steps, progress.training_seconds),
            peak_memory=progress.peak_memory,
            seconds=progress.seconds,
            run=self._run(),
            reason=reason,
        )

    def save(self) -> None:
        """Write a checkpoint of a state whose loss is known to be finite."""
        self._read()
        self.trainer.save()

    def pause(self) -> None:
        """Count the time since the last lap, but not as training."""
        self._stopwatch.pause()

    def _read(self) -> None:
        """Wait for the launched step and keep its loss."""
        if self._unread is None:
            return
        step, *result = self._unread
        self._unread = None
        with self.trainer.ranks.waiting():
            loss, self._norm = (float(number.item()) for number in result)
        if not (math.isfinite(loss) and math.isfinite(self._norm)):
            raise self.trainer.divergence(f"loss {loss}, gradient norm {self._norm}", step)
        self._losses.append(loss)

    def _timed(self) -> tuple[int, float]:
        return self.progress.timed_steps, self.progress.training_seconds

    def _speed_since_report(self) -> float:
        (steps, seconds), self._reported = self._reported, self._timed()
        return self._speed(self._reported[0] - steps, self._reported[1] - seconds)

    def _speed(self, steps: int, seconds: float) -> float:
        """Tokens per second; where only a first step was taken, of that one."""
        if not steps:
            steps, seconds = self.progress.step, self.progress.seconds
        return steps * self.trainer.tokens_per_step / max(seconds, 1e-9)

    def _seconds_left(self) -> float:
        trainer, progress = self.trainer, self.progress
        left = math.inf
        if trainer.steps:
            left = (trainer.steps - progress.step) * progress.seconds / progress.step
        if trainer.config.minutes:
            left = min(left, 60 * trainer.config.minutes - progress.seconds)
        return max(0.0, left)

    def _run(self) -> str:
        return str(self.trainer.run.path) if self.trainer.run else ""


INTERRUPTED = "interrupted"


def never() -> bool:
    """Nobody asks for an early end."""
    return False


def train(trainer: Trainer, should_stop: Callable[[], bool] = never) -> Iterator[Event]:
    """Train until a bound is reached, and yield what happens.

    Each step is launched before the loss of the one before it is read, so that preparing a step and
    computing one overlap.

    Args:
        trainer: What is trained; its run directory is kept up to date.
        should_stop: Asked before every step; when it says so, the state is saved and the training
            ends, on all ranks after the same step.

    Raises:
        ConfigError: The ranks train on different texts.
        RunError: The loss is not finite, the disk cannot be written, or a rank is lost.
    """
    trainer.join()
    trainer.model.train()
    mx.reset_peak_memory()
    try:
        with translate_mlx_errors():
            yield from _reports(trainer, Monitor(trainer), should_stop)
    except LostRank as lost:
        raise LostRank(f"{lost}: {trainer.kept()}; --resume takes any number of ranks") from lost


def _reports(trainer: Trainer, log: Monitor, should_stop: Callable[[], bool]) -> Iterator[Event]:
    for report in training_events(trainer, log, should_stop):
        if report is None:
            log.launched(trainer.launch_step())
        else:
            yield report


def training_events(
    trainer: Trainer, log: Monitor, should_stop: Callable[[], bool]
) -> Iterator[Event | None]:
    """What happens in a training, in order; None where its next step is to be launched.

    Args:
        trainer: What is trained.
        log: Is to be told of every step that was launched.
        should_stop: Asked before every step.
    """
    config, progress, reason = trainer.config, trainer.progress, ""
    yield log.started()
    if config.track and not progress.step:
        yield log.tracked()
    while not reason:
        reason = _agreed_reason(trainer, should_stop)
        evaluates = _evaluates(trainer, reason)
        if log.unreported and (reason or evaluates or _due(progress.step, config.log_every)):
            yield log.stepped()
        if evaluates:
            yield log.evaluated()
            reason = reason or _agreed_reason(trainer, should_stop)
        if reason or _due(progress.step, config.save_every or config.eval_every):
            log.save()
        if not reason:
            log.pause()
            yield None
            if _due(progress.step, config.track):
                yield log.tracked()
    yield log.ended(reason)


def _agreed_reason(trainer: Trainer, should_stop: Callable[[], bool]) -> str:
    """Why all ranks end now: anyone may be interrupted, for the rest rank 0's word and clock count.

    Whoever gets an answer knows that all ranks finished the step before: nothing is ever saved of a
    step that a lost rank had no part in.
    """
    word = _reason_to_end(trainer, should_stop), trainer.progress.seconds
    answers = trainer.ranks.gather(word)
    reason, trainer.progress.seconds = answers[0]
    return INTERRUPTED if any(answer[0] == INTERRUPTED for answer in answers) else reason


def _reason_to_end(trainer: Trainer, should_stop: Callable[[], bool]) -> str:
    """Why to end now: "interrupted", "done", "time" or "patience"; "" to go on."""
    config, progress = trainer.config, trainer.progress
    reasons = {
        INTERRUPTED: should_stop(),
        "done": trainer.steps and progress.step >= trainer.steps,
        "time": config.minutes and progress.seconds >= 60 * config.minutes,
        "patience": config.patience and progress.waited >= config.patience,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _evaluates(trainer: Trainer, reason: str) -> bool:
    """Whether to validate now: when it is due and at the end, but not before an interrupted exit.

    A validation that an interruption left out is made up for when the training goes on.
    """
    step = trainer.progress.step
    if reason == INTERRUPTED or not step or trainer.progress.evaluated_step == step:
        return False
    return bool(reason) or _due(step, trainer.config.eval_every)


def _due(step: int, every: int) -> bool:
    return bool(step and every) and step % every == 0
