"""The trials of a comparison: trainings of its arms, and their text."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from mlx_attn import files
from mlx_attn.comparison.config import Arm, ComparisonConfig
from mlx_attn.machine.facts import arithmetic
from mlx_attn.text.tasks import task_of
from mlx_attn.training.config import Settings

SHORTER = 4 / 5
"""Share of the steps in the shorter trainings of the control that measure the worth of tokens."""

POINTS = 8  # validations in the course of a training

RATES = ("lr", "min_lr", "muon_lr")  # the settings that a factor of the learning rates multiplies


@dataclass(frozen=True)
class Trial:
    """A training to do. Its settings decide all but the time that it takes."""

    arm: str
    settings: Settings  # learning rates scaled
    lr_scale: float  # the factor that they were scaled with, for people like `arm`
    text: str  # fingerprint of the text and its tokenizer
    # Path, digest and names of the user's files that it needs.
    plugins: Sequence[Mapping[str, Any]] = ()

    @property
    def seed(self) -> int:
        """Of weights, batches and dropout; trainings of one seed are pairs."""
        return self.settings.training.seed

    @property
    def flat(self) -> dict[str, Any]:
        """Return all settings by name."""
        of, text = self.settings, asdict(self.settings.text)
        return {"preset": of.preset, **of.model, **asdict(of.training), **text}

    @property
    def digest(self) -> str:
        """Names the training: the same settings, text, files and arithmetic, the same digest."""
        plugins = [(plugin["sha256"], plugin["files"]) for plugin in self.plugins]
        facts = [arithmetic(), self.flat, self.text, plugins]
        # Sorted keys: equal settings have equal digests.
        return files.digest(json.dumps(facts, sort_keys=True).encode())


def trial_of(config: ComparisonConfig, arm: Arm, seed: int) -> Trial:
    """Return the training of an arm with a seed and its scaled learning rates."""
    settings = config.settings(arm)
    training = settings.training
    every = max(1, training.steps // POINTS)
    # One factor for all rates keeps their proportions.
    rates = {key: getattr(training, key) * arm.lr_scale for key in RATES}
    # During training, texts are evaluated on a subset; tasks fully, to find when they are solved.
    evaluated = every if task_of(settings.text.data) else 0
    reports = {"eval_every": evaluated, "track": 0, "log_every": every}
    settings = replace(settings, training=replace(training, seed=seed, **rates, **reports))
    return Trial(arm.name, settings, arm.lr_scale, config.text, settings.plugins)
