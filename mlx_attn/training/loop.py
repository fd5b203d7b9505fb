"""The training loop: an iterator of reports. It prints nothing and knows no terminal."""

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx

from mlx_attn.training.reports import Ended, Evaluated, Report, Started, Stepped
from mlx_attn.training.trainer import Trainer
from mlx_attn.trees import count_parameters


def never() -> bool:
    """Nobody asks for an early end."""
    return False


def train(trainer: Trainer, should_stop: Callable[[], bool] = never) -> Iterator[Report]:
    """Train until a bound is reached, and yield what happens.

    Each step is launched before the loss of the one before it is read, so that preparing a step and
    computing one overlap.

    Args:
        trainer: What is trained; its run directory is kept up to date.
        should_stop: Asked after every step; when it says so, the state is saved and the training
            ends.

    Raises:
        RunError: The loss is not finite, or the disk cannot be written.
    """
    config, progress = trainer.config, trainer.progress
    trainer.model.train()
    mx.reset_peak_memory()
    log = _Log(trainer)
    yield log.started()
    reason = _reason_to_end(trainer, should_stop)
    while not reason:
        log.launched(trainer.launch_step())
        reason = _reason_to_end(trainer, should_stop)
        evaluates = _due(progress.step, config.eval_every)
        if reason or evaluates or _due(progress.step, config.log_every):
            yield log.stepped()
        if evaluates or reason not in ("", "interrupted"):
            yield log.evaluated()
            reason = reason or _patience_is_over(trainer)
        if reason or _due(progress.step, config.save_every or config.eval_every):
            trainer.save()
            log.pause()
    yield log.ended(reason)


def _reason_to_end(trainer: Trainer, should_stop: Callable[[], bool]) -> str:
    config, progress = trainer.config, trainer.progress
    if should_stop():
        return "interrupted"
    if trainer.steps and progress.step >= trainer.steps:
        return "done"
    return "time" if config.minutes and progress.seconds >= 60 * config.minutes else ""


def _patience_is_over(trainer: Trainer) -> str:
    patience = trainer.config.patience
    return "patience" if patience and trainer.progress.waited >= patience else ""


def _due(step: int, every: int) -> bool:
    return bool(every) and step % every == 0


class _Log:
    """Reads losses, keeps time and writes reports of one training."""

    def __init__(self, trainer: Trainer):
        self.trainer = trainer
        self._losses: list[float] = []
        self._unread: tuple[mx.array, mx.array] | None = None
        self._norm = 0.0
        self._since_report = 0.0
        self._last = time.perf_counter()

    def launched(self, result: tuple[mx.array, mx.array]) -> None:
        """Take note of a new step, and read the one before it."""
        self._read()
        self._unread = result
        seconds = self._lap()
        self._since_report += seconds
        self.trainer.progress.training_seconds += seconds

    def started(self) -> Started:
        trainer = self.trainer
        return Started(
            variant=trainer.settings.variant,
            step=trainer.progress.step,
            steps=trainer.steps,
            params=count_parameters(trainer.model),
            tokens_per_step=trainer.tokens_per_step,
            run=self._run(),
        )

    def stepped(self) -> Stepped:
        self._read()
        trainer, progress, losses = self.trainer, self.trainer.progress, self._losses
        seconds = self._lap()
        progress.training_seconds += seconds
        tokens = len(losses) * trainer.tokens_per_step
        speed = tokens / max(self._since_report + seconds, 1e-9)
        progress.peak_memory = max(progress.peak_memory, mx.get_peak_memory())
        self._losses, self._since_report = [], 0.0
        return Stepped(
            step=progress.step,
            steps=trainer.steps,
            tokens=progress.step * trainer.tokens_per_step,
            loss=sum(losses) / max(1, len(losses)),
            grad_norm=self._norm,
            lr=trainer.learning_rate,
            tok_s=speed,
            peak_memory=progress.peak_memory,
            seconds=progress.seconds,
            seconds_left=self._seconds_left(),
        )

    def evaluated(self) -> Evaluated:
        trainer, progress = self.trainer, self.trainer.progress
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
        )

    def ended(self, reason: str) -> Ended:
        trainer, progress = self.trainer, self.trainer.progress
        tokens = progress.step * trainer.tokens_per_step
        return Ended(
            variant=trainer.settings.variant,
            steps=progress.step,
            tokens=tokens,
            val_loss=_finite(progress.best_loss),
            bits_per_byte=_finite(progress.best_bits_per_byte),
            params=count_parameters(trainer.model),
            tok_s=tokens / max(progress.training_seconds, 1e-9),
            peak_memory=progress.peak_memory,
            seconds=progress.seconds,
            run=self._run(),
            reason=reason,
            above_floor=progress.best_above_floor,
            abilities=progress.best_abilities or {},
        )

    def pause(self) -> None:
        """Count the time since the last lap, but not as training."""
        self._lap()

    def _read(self) -> None:
        """Wait for the launched step and keep its loss."""
        if self._unread is None:
            return
        loss, self._norm = (_number(array) for array in self._unread)
        self._unread = None
        if not (math.isfinite(loss) and math.isfinite(self._norm)):
            raise self.trainer.divergence(loss, self._norm)
        self._losses.append(loss)

    def _lap(self) -> float:
        now = time.perf_counter()
        seconds, self._last = now - self._last, now
        self.trainer.progress.seconds += seconds
        return seconds

    def _seconds_left(self) -> float:
        trainer, progress = self.trainer, self.trainer.progress
        left = math.inf
        if trainer.steps:
            left = (trainer.steps - progress.step) * progress.seconds / max(1, progress.step)
        if trainer.config.minutes:
            left = min(left, 60 * trainer.config.minutes - progress.seconds)
        return max(0.0, left)

    def _run(self) -> str:
        return str(self.trainer.run.path) if self.trainer.run else ""


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _number(array: mx.array) -> float:
    number: Any = array.item()
    return float(number)
