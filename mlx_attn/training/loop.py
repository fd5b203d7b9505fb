"""The training loop: a generator of events.

Each step is launched before the loss of the previous one is read, so that the host prepares a step
while the device computes one.
"""

import math
import time
from collections.abc import Callable, Generator, Iterator

import mlx.core as mx

from mlx_attn.arrays import count_parameters
from mlx_attn.machine.advice import translate_mlx_errors
from mlx_attn.machine.streams import first_step_compiles
from mlx_attn.training.events import Ended, Evaluated, Event, Started, Stepped, Tracked
from mlx_attn.training.trainer import Trainer

INTERRUPTED = "interrupted"


def never() -> bool:
    """Return False: the training never stops early."""
    return False


def train(trainer: Trainer, should_stop: Callable[[], bool] = never) -> Iterator[Event]:
    """Train until a bound is reached, yielding events.

    Args:
        trainer: The training; its run directory is updated as it goes.
        should_stop: Called before every step. Once it returns true, the state is saved and the
            training ends.

    Raises:
        RunError: The loss is not finite, or the disk cannot be written.
    """
    trainer.read_weights()  # the caller may have given the model others
    mx.reset_peak_memory()
    monitor = _Monitor(trainer, should_stop)
    try:
        # Memory, compilers and Metal fail with messages that only MLX's authors understand.
        with translate_mlx_errors():
            yield monitor.started()
            reason = yield from monitor.between_steps()
            while not reason:
                # Returns before the step is computed; `launched` reads the loss of the step before.
                monitor.launched(trainer.launch_step())
                reason = yield from monitor.between_steps()
            yield monitor.ended(reason)
    finally:
        mx.clear_cache()  # the next training may have arrays of other sizes


class _Monitor:
    """Reads the losses of launched steps, keeps time, and makes the events that are due.

    Time is counted in laps. Those of validating, saving, displaying and the first step, which
    compiles, are not training and do not count for tokens per second.
    """

    def __init__(self, trainer: Trainer, should_stop: Callable[[], bool]):
        self.trainer, self.progress, self.should_stop = trainer, trainer.progress, should_stop
        # Step, loss and norm of the latest step, which the device may still be computing.
        self.unread: tuple[int, mx.array, mx.array] | None = None
        # Steps and seconds when the first step was done, and again the first validation: both
        # compile. None before.
        self.warm_since: tuple[int, float] | None = None
        self._has_validated = False
        # Steps and seconds at the last report of the loss.
        self._reported = self.progress.timed_steps, self.progress.training_seconds
        self._lap_start = time.perf_counter()

    def between_steps(self) -> Generator[Event, None, str]:
        """Report, validate and save when due; return why the training ends now, "" if not."""
        config, step = self.trainer.config, self.progress.step

        # Step 0 is never due: nothing has been trained yet.
        def due(every: int) -> bool:
            return bool(step and every) and step % every == 0

        # The heads at step 0 are tracked too: they are the start of every curve.
        if config.track and step % config.track == 0 and step != self.progress.tracked_step:
            yield self.tracked()
        reason = self._reason_to_end()
        # An interrupted training validates and reports when it resumes, so that the reported loss
        # is a mean over as many steps as without the interruption.
        ends = reason not in ("", INTERRUPTED)
        evaluates = step not in (0, self.progress.evaluated_step) and reason != INTERRUPTED
        evaluates = evaluates and (ends or due(config.eval_every))
        unreported = self.progress.losses or self.unread
        if unreported and (ends or evaluates or due(config.log_every)):
            yield self.stepped()
        if evaluates:
            yield self.evaluated()
            reason = reason or self._reason_to_end()
        # A checkpoint comes after the validation: it stores whether that was the best one.
        if reason or due(config.eval_every):
            self.read()
            self.trainer.save()
        self.lap()
        return reason

    def _reason_to_end(self) -> str:
        """Return the reason to end: one of `Ended.reason`, or "" to continue."""
        steps, minutes = self.trainer.steps, self.trainer.config.minutes
        if self.should_stop():
            return INTERRUPTED
        if steps and self.progress.step >= steps:
            return "done"
        return "time" if minutes and self.progress.seconds >= 60 * minutes else ""

    def lap(self, trained: bool = False) -> None:
        """End a lap, of training or of anything else."""
        now = time.perf_counter()
        seconds, self._lap_start = now - self._lap_start, now
        self.progress.seconds += seconds
        if trained:
            self.progress.training_seconds += seconds

    def launched(self, result: tuple[mx.array, mx.array]) -> None:
        """Take the loss and gradient norm of a new step, and read the previous step's."""
        self.read()
        self.unread = (self.progress.step, *result)
        if self.warm_since:
            self.lap(trained=True)
            self.progress.timed_steps += 1
        else:
            # The first step includes compiling, so it is read at once and not timed.
            self.read()
            self.lap()
            self.warm_since = self.progress.step, self.progress.seconds

    def read(self) -> None:
        """Wait for the launched step and store its loss."""
        if self.unread is None:
            return
        (step, *result), self.unread = self.unread, None
        # `float` waits for the device.
        loss, norm = map(float, result)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise self.trainer.divergence(f"loss {loss:.4g}, gradient norm {norm:.4g}", step)
        # `check_sane` compares later losses with it.
        self.progress.first_loss = self.progress.first_loss or loss
        self.progress.losses.append(loss)
        self.progress.grad_norm = norm

    def started(self) -> Started:
        trainer = self.trainer
        return Started(
            variant=trainer.settings.variant,
            step=self.progress.step,
            steps=trainer.steps,
            params=count_parameters(trainer.model),
            tokens_per_step=trainer.tokens_per_step,
            run=str(trainer.run.path) if trainer.run else "",
            compiles=first_step_compiles(trainer.config.compile),
        )

    def stepped(self) -> Stepped:
        self.read()
        trainer, progress = self.trainer, self.progress
        self.lap(trained=True)
        progress.peak_memory = max(progress.peak_memory, mx.get_peak_memory())
        losses, progress.losses = progress.losses, []
        steps, seconds = self._reported
        self._reported = progress.timed_steps, progress.training_seconds
        left = (trainer.steps - progress.step) * self._pace() if trainer.steps else math.inf
        if trainer.config.minutes:
            left = min(left, 60 * trainer.config.minutes - progress.seconds)
        return Stepped(
            step=progress.step,
            steps=trainer.steps,
            tokens=trainer.tokens,
            loss=sum(losses) / len(losses),
            grad_norm=progress.grad_norm,
            lr=trainer.learning_rate(progress.step),
            tok_s=self._speed(progress.timed_steps - steps, progress.training_seconds - seconds),
            peak_memory=progress.peak_memory,
            seconds=progress.seconds,
            seconds_left=max(0.0, left),
        )

    def _pace(self) -> float:
        """Return the seconds of a step, with its share of validating, and without compiling."""
        step, seconds = self.warm_since or (0, 0.0)
        if step == self.progress.step:  # there are no others yet
            step, seconds = 0, 0.0
        return (self.progress.seconds - seconds) / (self.progress.step - step)

    def evaluated(self) -> Evaluated:
        """Validate, and save the weights if they are the best so far."""
        trainer, progress = self.trainer, self.progress
        evaluation = trainer.evaluator(trainer.model)
        trainer.check_sane("validation loss", evaluation.val_loss)
        progress.evaluated_step = progress.step
        best = progress.best is None or evaluation.val_loss < progress.best.val_loss
        if best:
            progress.best = evaluation
            if trainer.run:
                trainer.run.save_model(trainer.model)
        self.lap()
        if self.warm_since and not self._has_validated:
            self.warm_since = progress.step, progress.seconds
        self._has_validated = True
        return Evaluated(
            step=progress.step,
            tokens=trainer.tokens,
            evaluation=evaluation,
            best=best,
            seconds=progress.seconds,
        )

    def tracked(self) -> Tracked:
        """Measure the heads' matrices once the loss is known to be finite."""
        assert self.trainer.track, "probe.tracking.track_heads comes before the training"
        self.read()
        self.lap(trained=True)
        tracked = self.trainer.track()
        self.progress.tracked_step = tracked.step
        self.lap()
        return tracked

    def ended(self, reason: str) -> Ended:
        trainer, progress = self.trainer, self.progress
        return Ended(
            variant=trainer.settings.variant,
            steps=progress.step,
            tokens=trainer.tokens,
            evaluation=progress.best,
            params=count_parameters(trainer.model),
            tok_s=self._speed(progress.timed_steps, progress.training_seconds),
            peak_memory=progress.peak_memory,
            seconds=progress.seconds,
            run=str(trainer.run.path) if trainer.run else "",
            reason=reason,
        )

    def _speed(self, steps: int, seconds: float) -> float:
        """Return tokens per second; of the first step, which is never timed, if it is the only."""
        if not steps:
            steps, seconds = self.progress.step, self.progress.seconds
        return steps * self.trainer.tokens_per_step / max(seconds, 1e-9)
