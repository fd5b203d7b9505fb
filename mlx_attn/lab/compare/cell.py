"""One training of a comparison: what it is, and how it is known again."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import Any

import mlx.core as mx

from mlx_attn import __version__
from mlx_attn.text.corpus import Corpus, prepare
from mlx_attn.text.tasks import TASKS
from mlx_attn.training.settings import Settings

POINTS = 8
"""Validations, and measurements of the heads' matrices, in the course of a training."""


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


def floor_of(corpus: Corpus) -> float | None:
    """The least loss that is possible on the validation text, in nats per scored token."""
    floor, split = corpus.val.floor_nats, corpus.val
    scored = len(split.tokens) - 1 if split.scored is None else split.n_scored
    return None if floor is None else floor / scored
