"""The log of one training: reads losses, keeps time, and makes the reports of it."""

import math
import time
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import mlx.core as mx

from mlx_attn.training.checkpoint import Progress
from mlx_attn.training.reports import Ended, Evaluated, Started, Stepped, Tracked
from mlx_attn.training.trainer import Trainer
from mlx_attn.trees import count_parameters


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


class Log:
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
        result, best = trainer.evaluate()
        self.pause()
        return Evaluated(
            step=progress.step,
            tokens=progress.step * trainer.tokens_per_step,
            val_loss=result.loss,
            bits_per_byte=result.bits_per_byte,
            above_floor=result.above_floor,
            best=best,
            seconds=progress.seconds,
            accuracy=result.accuracy,
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
        validated = math.isfinite(progress.best_loss)
        return Ended(
            variant=trainer.settings.variant,
            steps=progress.step,
            tokens=progress.step * trainer.tokens_per_step,
            val_loss=progress.best_loss if validated else None,
            bits_per_byte=progress.best_bits_per_byte if validated else None,
            params=count_parameters(trainer.model),
            tok_s=self._speed(progress.timed_steps, progress.training_seconds),
            peak_memory=progress.peak_memory,
            seconds=progress.seconds,
            run=self._run(),
            reason=reason,
            above_floor=progress.best_above_floor,
            abilities=progress.best_abilities or {},
            accuracy=progress.best_accuracy,
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
