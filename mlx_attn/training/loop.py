"""The training loop: an iterator of reports. It prints nothing and knows no terminal."""

from collections.abc import Callable, Iterator

import mlx.core as mx

from mlx_attn.training.complaints import advised
from mlx_attn.training.log import Log
from mlx_attn.training.ranks import LostRank
from mlx_attn.training.reports import Report
from mlx_attn.training.trainer import Trainer

INTERRUPTED = "interrupted"


def never() -> bool:
    """Nobody asks for an early end."""
    return False


def train(trainer: Trainer, should_stop: Callable[[], bool] = never) -> Iterator[Report]:
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
        with advised():
            yield from _reports(trainer, Log(trainer), should_stop)
    except LostRank as lost:
        raise LostRank(f"{lost}: {trainer.kept()}; --resume takes any number of ranks") from lost


def _reports(trainer: Trainer, log: Log, should_stop: Callable[[], bool]) -> Iterator[Report]:
    for report in course(trainer, log, should_stop):
        if report is None:
            log.launched(trainer.launch_step())
        else:
            yield report


def course(trainer: Trainer, log: Log, should_stop: Callable[[], bool]) -> Iterator[Report | None]:
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
