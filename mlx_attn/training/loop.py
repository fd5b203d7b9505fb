"""The training loop: an iterator of reports. It prints nothing and knows no terminal."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import mlx.core as mx

from mlx_attn.errors import RunError
from mlx_attn.model import GPT
from mlx_attn.runs import Run
from mlx_attn.text.corpus import Corpus
from mlx_attn.training.batches import EpochWindows, RandomWindows, WindowOrder
from mlx_attn.training.checkpoint import Progress, load_checkpoint, save_checkpoint
from mlx_attn.training.config import TrainConfig
from mlx_attn.training.evaluation import Evaluator
from mlx_attn.training.optimizers import GroupedOptimizer
from mlx_attn.training.reports import Ended, Evaluated, Report, Started, Stepped
from mlx_attn.training.schedule import learning_rate_factor
from mlx_attn.training.settings import Settings
from mlx_attn.training.step import TrainStep
from mlx_attn.trees import count_parameters

Stop = Callable[[], bool]


def never() -> bool:
    """Nobody asks for an early end."""
    return False


class Trainer:
    """Trains one model on one corpus and keeps its run directory up to date.

    Args:
        settings: The recipe.
        corpus: The text.
        run: Where to keep weights and checkpoints; None keeps nothing on disk.
        resume: Go on from the run's checkpoint.

    Raises:
        ConfigError: The text is too short, or settings cannot work together.
        RunError: The checkpoint to resume from is missing or damaged.
    """

    def __init__(
        self, settings: Settings, corpus: Corpus, run: Run | None = None, resume: bool = False
    ):
        self.settings, self.config, self.run = settings, settings.training, run
        mx.random.seed(self.config.seed)
        model_config = settings.model_config(corpus.tokenizer.vocab_size)
        self.model = GPT(model_config)
        self.optimizer = GroupedOptimizer(self.model, self.config, model_config.n_heads)
        self.progress = Progress()
        if resume and run:
            self.progress = load_checkpoint(run.checkpoint, self.model, self.optimizer)
        mx.eval(self.model.parameters(), self.optimizer.state)
        self.order = _window_order(corpus, model_config.context_length, self.config)
        self.steps = _bound_in_steps(self.config, self.order)
        self.evaluate = Evaluator(corpus.val, model_config.context_length)
        self._step = TrainStep(
            self.model, self.optimizer, mx.asarray(corpus.train.tokens), self.config
        )
        self.tokens_per_step = (
            self.config.batch_size * self.config.accumulate * model_config.context_length
        )
        self._clock = _Clock()

    def train(self, should_stop: Stop = never) -> Iterator[Report]:
        """Train until a bound is reached; yield what happens.

        Args:
            should_stop: Asked after every step; when it says so, the state is saved and the
                training ends.

        Raises:
            RunError: The loss is not finite, or the disk cannot be written.
        """
        self.model.train()
        mx.reset_peak_memory()
        yield self._started()
        reason, unread, losses = self._reason_to_end(should_stop), None, []
        self._clock.start()
        while not reason:
            result = self._launch()
            if unread is not None:
                losses.append(self._read(unread))
            unread = result
            self.progress.step += 1
            self._keep_time()
            reason = self._reason_to_end(should_stop)
            if reason or self._due(self.config.log_every) or self._due(self.config.eval_every):
                losses.append(self._read(unread))
                yield self._stepped(losses, unread)
                unread, losses = None, []
            if self._due(self.config.eval_every) or (reason and reason != "interrupted"):
                yield self._evaluated()
                reason = self._patience_is_over() or reason
            if reason or self._due(self.config.save_every or self.config.eval_every):
                self._save()
        yield self._ended(reason)

    def _launch(self) -> tuple[mx.array, mx.array]:
        """Start one step; the next one can be prepared while it is computed."""
        factor = learning_rate_factor(
            self.config, self.progress.step, self.steps, self.progress.seconds
        )
        self.optimizer.schedule(factor)
        parts = self.config.accumulate
        starts = [
            self.order.starts(self.config.seed, self.progress.step * parts + i)
            for i in range(parts)
        ]
        loss, norm = self._step(mx.concatenate(starts))
        mx.async_eval(loss, norm, *self._step.state)
        return loss, norm

    def _read(self, result: tuple[mx.array, mx.array]) -> float:
        """The loss of a step, once it is computed."""
        loss, norm = (_number(array) for array in result)
        if math.isfinite(loss) and math.isfinite(norm):
            return loss
        saved = self.run is not None and self.run.checkpoint.exists()
        kept = (
            f"the last good checkpoint is {self.run.checkpoint}"
            if self.run and saved
            else ("no checkpoint was saved yet")
        )
        raise RunError(
            f"the loss is {loss} and the gradient's norm {norm} at about step "
            f"{self.progress.step}, learning rate {self._learning_rate():.3g}: "
            f"use a smaller --lr or --clip 1; {kept}"
        )

    def _keep_time(self) -> None:
        seconds = self._clock.lap()
        self.progress.seconds += seconds
        self.progress.training_seconds += seconds

    def _reason_to_end(self, should_stop: Stop) -> str:
        if should_stop():
            return "interrupted"
        if self.steps and self.progress.step >= self.steps:
            return "done"
        if self.config.minutes and self.progress.seconds >= 60 * self.config.minutes:
            return "time"
        return ""

    def _patience_is_over(self) -> str:
        patience = self.config.patience
        return "patience" if patience and self.progress.waited >= patience else ""

    def _due(self, every: int) -> bool:
        return bool(every) and self.progress.step % every == 0

    def _started(self) -> Started:
        return Started(
            variant=self.settings.variant,
            step=self.progress.step,
            steps=self.steps,
            params=count_parameters(self.model),
            tokens_per_step=self.tokens_per_step,
            run=self._run_name(),
        )

    def _stepped(self, losses: list[float], last: tuple[mx.array, mx.array]) -> Stepped:
        self._keep_time()
        speed = len(losses) * self.tokens_per_step / max(self._clock.since_mark(), 1e-9)
        self.progress.peak_memory = max(self.progress.peak_memory, mx.get_peak_memory())
        return Stepped(
            step=self.progress.step,
            steps=self.steps,
            tokens=self.progress.step * self.tokens_per_step,
            loss=sum(losses) / len(losses),
            grad_norm=_number(last[1]),
            lr=self._learning_rate(),
            tok_s=speed,
            peak_memory=self.progress.peak_memory,
            seconds=self.progress.seconds,
            seconds_left=self._seconds_left(),
        )

    def _evaluated(self) -> Evaluated:
        result = self.evaluate(self.model)
        self.progress.seconds += self._clock.lap()
        self._clock.mark()
        best = result.loss < self.progress.best_loss
        self.progress.waited = 0 if best else self.progress.waited + 1
        if best:
            self.progress = replace(
                self.progress,
                best_loss=result.loss,
                best_bits_per_byte=result.bits_per_byte,
                best_above_floor=result.above_floor,
                best_abilities=dict(result.abilities),
            )
            if self.run:
                self.run.save_model(self.model)
        return Evaluated(
            step=self.progress.step,
            tokens=self.progress.step * self.tokens_per_step,
            val_loss=result.loss,
            bits_per_byte=result.bits_per_byte,
            above_floor=result.above_floor,
            best=best,
            seconds=self.progress.seconds,
        )

    def _save(self) -> None:
        if self.run:
            if not self.run.weights.exists():
                self.run.save_model(self.model)
            save_checkpoint(self.run.checkpoint, self.model, self.optimizer, self.progress)
        self._clock.lap()
        self._clock.mark()

    def _ended(self, reason: str) -> Ended:
        progress = self.progress
        tokens = progress.step * self.tokens_per_step
        return Ended(
            variant=self.settings.variant,
            steps=progress.step,
            tokens=tokens,
            val_loss=_finite(progress.best_loss),
            bits_per_byte=_finite(progress.best_bits_per_byte),
            params=count_parameters(self.model),
            tok_s=tokens / max(progress.training_seconds, 1e-9),
            peak_memory=progress.peak_memory,
            seconds=progress.seconds,
            run=self._run_name(),
            reason=reason,
            above_floor=progress.best_above_floor,
            abilities=progress.best_abilities or {},
        )

    def _seconds_left(self) -> float:
        done, seconds = self.progress.step, self.progress.seconds
        by_steps = (self.steps - done) * seconds / done if self.steps else math.inf
        by_time = 60 * self.config.minutes - seconds if self.config.minutes else math.inf
        return max(0.0, min(by_steps, by_time))

    def _learning_rate(self) -> float:
        step = max(0, self.progress.step - 1)
        return self.config.lr * learning_rate_factor(
            self.config, step, self.steps, self.progress.seconds
        )

    def _run_name(self) -> str:
        return str(self.run.path) if self.run else ""


class _Clock:
    """Seconds between laps, and since a mark."""

    def start(self) -> None:
        self._lap = self._mark = time.perf_counter()

    def lap(self) -> float:
        now = time.perf_counter()
        seconds, self._lap = now - self._lap, now
        return seconds

    def mark(self) -> None:
        self._mark = time.perf_counter()

    def since_mark(self) -> float:
        seconds = time.perf_counter() - self._mark
        self.mark()
        return seconds


def _window_order(corpus: Corpus, context_length: int, config: TrainConfig) -> WindowOrder:
    n_tokens = len(corpus.train.tokens)
    if config.windows == "epochs":
        return EpochWindows(n_tokens, context_length, config.batch_size)
    return RandomWindows(n_tokens, context_length, config.batch_size, corpus.train.document_starts)


def _bound_in_steps(config: TrainConfig, order: WindowOrder) -> int:
    """The bound in steps that steps and epochs make together; 0 where there is none."""
    by_epochs = math.ceil(config.epochs * order.steps_per_epoch / config.accumulate)
    bounds = [bound for bound in (config.steps, by_epochs) if bound]
    return min(bounds, default=0)


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _number(array: mx.array) -> float:
    number: Any = array.item()
    return float(number)
