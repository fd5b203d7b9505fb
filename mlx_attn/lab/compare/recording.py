"""Does a training of a comparison in this process, and records its course."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np

from mlx_attn.errors import RunError
from mlx_attn.lab.compare.cell import Cell, corpus_of, floor_of
from mlx_attn.lab.compare.result import Point, Ranks, Training
from mlx_attn.sampling import SamplerConfig, stream
from mlx_attn.text.corpus import Corpus
from mlx_attn.training.loop import INTERRUPTED, never, train
from mlx_attn.training.objective import objective_for
from mlx_attn.training.reports import Ended, Evaluated, Report, Stepped, Tracked
from mlx_attn.training.settings import Settings, resolve
from mlx_attn.training.trainer import Trainer

GLANCE = 32
"""Windows that a text is glanced at with, between the beginning and the end."""

_PROMPT_TOKENS, _SAMPLE_TOKENS = 8, 60


def train_cell(cell: Cell, should_stop: Callable[[], bool] = never) -> Training | None:
    """Do a training; None when it was told to stop.

    Raises:
        Diverged: The loss is not finite.
        RunError: The text cannot be read, or has changed.
        ConfigError: The settings cannot work.
    """
    settings = resolve(cell.settings)
    corpus = unchanged_corpus(cell, settings)
    trainer = Trainer(settings, corpus)
    recording = Recording(cell, trainer, corpus)
    for report in train(trainer, should_stop):
        recording.take(report)
    return recording.training()


def unchanged_corpus(cell: Cell, settings: Settings) -> Corpus:
    """The text of a training.

    Raises:
        RunError: It cannot be read, or is not what it was when the comparison began.
    """
    corpus = corpus_of(settings)
    if corpus.digest != cell.text:
        raise RunError(f"{corpus.name} has changed since the comparison began")
    return corpus


class Recording:
    """The course of a training, taken down report by report.

    Args:
        cell: What is trained.
        trainer: What trains it, before its first step.
        corpus: On what.
    """

    def __init__(self, cell: Cell, trainer: Trainer, corpus: Corpus):
        self.cell, self.trainer, self.corpus = cell, trainer, corpus
        self._glance = Glance(trainer, corpus)
        self._points: list[Point] = []
        self._ranks: list[Ranks] = []
        self._ended: Ended | None = None

    def take(self, report: Report) -> None:
        """Note what happened; the model has the weights that it happened to."""
        config, last = self.trainer.config, self.trainer.steps
        match report:
            case Stepped() if not config.eval_every and report.step < last:
                self._points.append(self._glance(report))
            case Evaluated():
                self._points.append(_point(report))
            case Tracked():
                self._ranks.append(_ranks(report))
            case Ended():
                self._ended = report

    def training(self) -> Training | None:
        """The whole, once it ended; None if it was told to stop."""
        ended = self._ended
        if ended is None or ended.reason == INTERRUPTED:
            return None
        last, floor = self._points[-1], floor_of(self.corpus)
        return Training(
            seed=self.cell.seed,
            lr_scale=self.cell.lr_scale,
            steps=ended.steps,
            tokens=ended.tokens,
            val_loss=last.val_loss,
            bits_per_byte=ended.bits_per_byte,
            above_floor=None if floor is None else last.val_loss - floor,
            accuracy=last.accuracy,
            abilities=dict(self.trainer.progress.best_abilities or {}),
            curve=tuple(self._points),
            ranks=tuple(self._ranks),
            tok_s=ended.tok_s,
            seconds=ended.seconds,
            peak_memory=ended.peak_memory,
            sample=_sample(self.trainer, self.corpus),
        )


class Glance:
    """The loss on a few windows of the validation text, spread over it, the same for every arm."""

    def __init__(self, trainer: Trainer, corpus: Corpus):
        self.model, evaluator = trainer.model, trainer.evaluator
        self._objective = objective_for(
            corpus.val, evaluator.context_length, trainer.config.token_memory
        )
        spread = np.linspace(0, len(evaluator.windows) - 1, GLANCE).astype(int)
        self._starts = mx.array(evaluator.windows.start[np.unique(spread)])

    def __call__(self, report: Stepped) -> Point:
        """The loss now; the model goes on training."""
        self.model.eval()
        batch = self._objective.gather(self._objective.fetch(self._starts))
        loss: Any = self._objective.loss(self.model, batch).item()
        self.model.train()
        return Point(step=report.step, tokens=report.tokens, seconds=report.seconds, val_loss=loss)


def _point(report: Evaluated) -> Point:
    return Point(
        step=report.step,
        tokens=report.tokens,
        seconds=report.seconds,
        val_loss=report.val_loss,
        accuracy=report.accuracy,
    )


def _ranks(report: Tracked) -> Ranks:
    return Ranks(
        step=report.step,
        scores=float(np.mean(report.scores["effective_rank"])),
        value_outputs=float(np.mean(report.value_outputs["effective_rank"])),
    )


def _sample(trainer: Trainer, corpus: Corpus) -> str:
    """What the model writes after the first tokens of the validation text, these included."""
    beginning = [int(token) for token in corpus.val.tokens[:_PROMPT_TOKENS]]
    prompt = b"".join(map(corpus.tokenizer.token_bytes, beginning)).decode(errors="ignore")
    trainer.model.eval()
    pieces = stream(
        trainer.model, corpus.tokenizer, prompt, SamplerConfig(temp=0.0), _SAMPLE_TOKENS
    )
    return prompt + "".join(piece.text for piece in pieces)
