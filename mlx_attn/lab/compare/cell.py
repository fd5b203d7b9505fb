"""One training of a comparison: what it is, how it is known again, and how it is done."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import Any

import mlx.core as mx
import numpy as np

from mlx_attn import __version__
from mlx_attn.errors import RunError
from mlx_attn.lab.compare.result import Point, Ranks, Training
from mlx_attn.sampling import SamplerConfig, stream
from mlx_attn.text.corpus import Corpus, prepare
from mlx_attn.text.tasks import TASKS
from mlx_attn.training.loop import INTERRUPTED, never, train
from mlx_attn.training.objective import objective_for
from mlx_attn.training.reports import Ended, Evaluated, Stepped, Tracked
from mlx_attn.training.settings import Settings, resolve
from mlx_attn.training.trainer import Trainer

POINTS = 8
"""Validations, and measurements of the heads' matrices, in the course of a training."""

GLANCE = 32
"""Windows that a text is glanced at with, between the beginning and the end."""

_PROMPT_TOKENS, _SAMPLE_TOKENS = 8, 60


@dataclass(frozen=True, slots=True)
class Cell:
    """A training to do. Its settings decide all but the time that it takes.

    Attributes:
        arm: Whose training it is, for people.
        settings: All settings, flat, learning rates scaled.
        lr_scale: The factor that they were scaled with, for people.
        text: Digest of the text that is trained on.
        repeat: Counts trainings that are the same on purpose, to see whether they end the same.
    """

    arm: str
    settings: Mapping[str, Any]
    lr_scale: float
    text: str
    repeat: int = 0

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def seed(self) -> int:
        """Of the batches; trainings of one seed are pairs."""
        return self.settings["seed"]

    @property
    def digest(self) -> str:
        """Names the training: the same settings, versions and kind of device, the same digest."""
        versions = (__version__, version("mlx"), mx.default_device().type.name)
        facts = json.dumps([versions, self.settings, self.text, self.repeat], sort_keys=True)
        return hashlib.blake2b(facts.encode(), digest_size=12).hexdigest()


def cell_of(arm: str, settings: Settings, seed: int, lr_scale: float, text: str) -> Cell:
    """The training of these settings with a seed and scaled learning rates."""
    training = settings.training
    every = max(1, training.steps // POINTS)
    rates = {key: getattr(training, key) * lr_scale for key in ("lr", "min_lr", "muon_lr")}
    # Between, a text is only glanced at; of a task it matters when it is solved.
    evaluated = every if settings.text.data in TASKS else 0
    reports = {"eval_every": evaluated, "track": every, "log_every": every}
    recipe = replace(training, seed=seed, **rates, **reports).as_dict()
    flat = {"preset": settings.preset, **settings.model, **recipe, **asdict(settings.text)}
    return Cell(arm, flat, lr_scale, text)


def corpus_of(settings: Settings) -> Corpus:
    """The text that settings name."""
    return prepare(settings.text.data, settings.text.tokenizer, settings.text.vocab_size)


def train_cell(cell: Cell, should_stop: Callable[[], bool] = never) -> Training | None:
    """Do a training; None when it was told to stop.

    Raises:
        Diverged: The loss is not finite.
        RunError: The text cannot be read, or has changed.
        ConfigError: The settings cannot work.
    """
    settings = resolve(cell.settings)
    corpus = corpus_of(settings)
    if corpus.digest != cell.text:
        raise RunError(f"{corpus.name} has changed since the comparison began")
    trainer = Trainer(settings, corpus)
    glance = Glance(trainer, corpus)
    points, ranks, ended = [], [], None
    for report in train(trainer, should_stop):
        match report:
            case Stepped() if not trainer.config.eval_every and report.step < trainer.steps:
                points.append(glance(report))
            case Evaluated():
                points.append(_point(report))
            case Tracked():
                ranks.append(_ranks(report))
            case Ended():
                ended = report
    if ended is None or ended.reason == INTERRUPTED:
        return None
    return _training(cell, trainer, corpus, ended, points, ranks)


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


def floor_of(corpus: Corpus) -> float | None:
    """The least loss that is possible on the validation text, in nats per scored token."""
    floor, split = corpus.val.floor_nats, corpus.val
    scored = len(split.tokens) - 1 if split.scored is None else split.n_scored
    return None if floor is None else floor / scored


def _training(
    cell: Cell,
    trainer: Trainer,
    corpus: Corpus,
    ended: Ended,
    points: list[Point],
    ranks: list[Ranks],
) -> Training:
    last, floor = points[-1], floor_of(corpus)
    evaluation = trainer.progress
    return Training(
        seed=cell.seed,
        lr_scale=cell.lr_scale,
        steps=ended.steps,
        tokens=ended.tokens,
        val_loss=last.val_loss,
        bits_per_byte=ended.bits_per_byte,
        above_floor=None if floor is None else last.val_loss - floor,
        accuracy=last.accuracy,
        abilities=dict(evaluation.best_abilities or {}),
        curve=tuple(points),
        ranks=tuple(ranks),
        tok_s=ended.tok_s,
        seconds=ended.seconds,
        peak_memory=ended.peak_memory,
        sample=_sample(trainer, corpus),
    )


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
