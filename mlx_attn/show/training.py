"""A training from its first report to its last line, for whoever sits in front of it."""

from collections.abc import Callable
from functools import partial

from mlx_attn.sampling import SamplerConfig, stream
from mlx_attn.show.progress import Display
from mlx_attn.show.terminal import discard_unread
from mlx_attn.text.tokenizers import Tokenizer
from mlx_attn.training.answers import answered
from mlx_attn.training.loop import INTERRUPTED, train
from mlx_attn.training.reports import Ended, Evaluated, Report, as_record
from mlx_attn.training.trainer import Trainer

SAMPLE_TOKENS = 120


def follow(
    trainer: Trainer, tokenizer: Tokenizer, display: Display, asked: Callable[[], bool]
) -> str:
    """Train, show and store every report, conclude, and return why the training ended.

    Reports go to metrics.jsonl and, at every validation, a sample to samples.txt. When reports can
    no longer be shown, as after `| head`, the training ends as if interrupted.

    Raises:
        OSError: They could not be shown for another reason, such as a full disk; all is saved.
    """
    keep, first_step = Keeper(trainer, tokenizer), trainer.progress.step
    audience = Audience()
    with display:
        for report in train(trainer, lambda: asked() or audience.gone):
            keep(report)
            audience.show(partial(display, report))
    audience.complain()
    return _concluded(trainer, display, first_step, keep)


def _concluded(trainer: Trainer, display: Display, first_step: int, keep: "Keeper") -> str:
    ended = keep.ended
    if not ended or ended.reason == INTERRUPTED:
        display.message(what_is_saved(trainer))
        return INTERRUPTED
    if ended.steps == first_step:
        display.message(f"nothing left to do at step {ended.steps}: give more --steps or --minutes")
    display.conclude(ended, keep.sample)
    return ended.reason


def what_is_saved(trainer: Trainer) -> str:
    """How to go on with a training that was interrupted."""
    if not trainer.run or trainer.saved_step is None:
        return "stopped; nothing was saved"
    return (
        f"saved at step {trainer.saved_step}; go on with:  "
        f"mlx-attn train --resume {trainer.run.path}"
    )


class Audience:
    """Whoever is shown the reports, until these can no longer be shown."""

    def __init__(self):
        self._failures: list[OSError] = []

    @property
    def gone(self) -> bool:
        """Whether something could not be shown."""
        return bool(self._failures)

    def show(self, show: Callable[[], None]) -> None:
        """Show something, and note if that fails."""
        try:
            show()
        except OSError as error:
            self._failures.append(error)
            if isinstance(error, BrokenPipeError):
                discard_unread()

    def complain(self) -> None:
        """Raise the first failure, unless it is that nobody reads on, as after `| head`."""
        if self.gone and not isinstance(self._failures[0], BrokenPipeError):
            raise self._failures[0]


class Keeper:
    """Stores reports and samples in the run directory; those made anew are forgotten first."""

    def __init__(self, trainer: Trainer, tokenizer: Tokenizer):
        self.trainer, self.tokenizer, self.sample = trainer, tokenizer, ""
        self.ended: Ended | None = None
        if trainer.run:
            trainer.run.forget_after(trainer.progress.step)

    def __call__(self, report: Report) -> None:
        """Store one report."""
        run = self.trainer.run
        self.ended = report if isinstance(report, Ended) else None
        if not run:
            return
        run.add_report(as_record(report))
        if isinstance(report, Evaluated):
            self.sample = write_sample(self.trainer, self.tokenizer)
            run.add_sample(report.step, self.sample)


def write_sample(trainer: Trainer, tokenizer: Tokenizer) -> str:
    """What the model writes now: a text from nothing, or its answers to a task."""
    model, split = trainer.model, trainer.evaluator.split
    model.eval()
    if split.scored is None:
        pieces = stream(model, tokenizer, "", SamplerConfig(temp=0.8, seed=0), SAMPLE_TOKENS)
        text = "".join(piece.text for piece in pieces)
    else:
        text = answered(model, split, tokenizer)
    model.train()
    return text
