"""Comparisons without trainings: a runner whose losses follow a formula."""

import json
import math
import os
import zlib
from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlx_attn.comparison.config import ComparisonConfig, arms_from
from mlx_attn.comparison.plan import Trial
from mlx_attn.comparison.result import Comparison, Point, TrialResult
from mlx_attn.comparison.run import ComparisonRun
from mlx_attn.comparison.runner import Runner
from mlx_attn.comparison.trial import Diverged, Outcome, Store
from tests.runs import STORY, TINY

NOISE_KEYS = (
    *("score", "value", "output", "n_heads", "head_dim", "hidden_dim", "optimizer"),
    *("lr", "seed", "steps"),
)
"""The settings that the noise of a training by formula is a function of."""


def training(seed: int = 0, loss: float = 1.0, **fields: Any) -> TrialResult:
    """A training with this loss."""
    end = Point(step=10, val_loss=loss)
    facts: dict[str, Any] = {
        "seed": seed,
        "steps": 10,
        "tokens": 100,
        "val_loss": loss,
        "bits_per_byte": 1.0,
        "above_floor": None,
        "accuracy": None,
        "abilities": {},
        "curve": (replace(end, step=5, val_loss=loss + 0.5), end),
        "tok_s": 100.0,
        "seconds": 1.0,
    }
    return TrialResult(**{**facts, **fields})


class FormulaRunner(Runner):
    """Trains by a formula.

    The loss is 1, plus an arm's own effect, plus 0.1 for every factor of 2 between the learning
    rate and the arm's best one, squared, plus noise that is a function of the trial.

    Attributes:
        effects: How much higher each arm's loss is.
        best_rates: The best learning rates; where none is given, 0.01.
        diverges: Arms whose trials all diverge.
        noise: Standard deviation of the noise.
        token_worth: Nats that the loss falls by if the steps are multiplied by e.
        shares: Shares of the tokens predicted right at the end, by arm, as tasks have them.
        fails_after: Raises KeyboardInterrupt after this many trials.
        done: The trials trained.
    """

    def __init__(self, store: Store, noise: float = 0.0):
        super().__init__(store, jobs=2)
        self.noise, self.fails_after = noise, math.inf
        self.effects: dict[str, float] = {}
        self.best_rates: dict[str, float] = {}
        self.diverges: tuple[str, ...] = ()
        self.token_worth = 0.0
        self.shares: dict[str, float] = {}
        self.done: list[Trial] = []

    def __call__(self, trials: Iterable[Trial]) -> Generator[tuple[Trial, Outcome], None, None]:
        for trial in self.store.missing(trials):
            if len(self.done) >= self.fails_after:
                raise KeyboardInterrupt
            self.store[trial] = self._by_formula(trial)
            self.done.append(trial)
            yield trial, self.store[trial]

    def _by_formula(self, trial: Trial) -> Outcome:
        if trial.arm in self.diverges:
            return Diverged("loss nan at step 3")
        steps = trial.settings.training.steps
        best = self.best_rates.get(trial.arm, 0.01)
        octaves = math.log2(trial.settings.training.lr / best)
        # Only settings in which trials differ: a new setting of the package redraws nothing.
        facts = {key: trial.flat.get(key) for key in NOISE_KEYS}
        number = zlib.crc32(json.dumps([facts, 0], sort_keys=True).encode())
        noise = np.random.default_rng(number).normal() * self.noise
        loss = 1 + self.effects.get(trial.arm, 0.0) + 0.1 * octaves**2 + noise
        loss -= self.token_worth * math.log(steps / 1000)
        speed = 50.0 if "merged" in trial.arm else 100.0
        made = training(trial.seed, loss, steps=steps, tok_s=speed)
        if (share := self.shares.get(trial.arm)) is None:
            return made
        curve = tuple(replace(point, step=made.steps, accuracy=share) for point in made.curve)
        return replace(made, accuracy=share, curve=curve)


def conclude(protocol: ComparisonConfig, runner: Runner) -> Comparison:
    """Run a comparison and return its result."""
    *_, last = ComparisonRun(protocol, runner)
    assert isinstance(last, Comparison)
    return last


@pytest.fixture
def story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A text of 1,600 characters, and a data directory of its own."""
    monkeypatch.setenv("MLX_ATTN_DATA_DIR", str(tmp_path / "data"))
    path = tmp_path / "story.txt"
    path.write_text(STORY)
    return path


@pytest.fixture
def shared(story: Path) -> dict[str, Any]:
    """Settings of a training that takes a tenth of a second."""
    return {**TINY, "data": str(story), "steps": 8, "optimizer": "adamw", "lr": 0.01}


@pytest.fixture
def protocol(shared: dict[str, Any]) -> Callable[..., ComparisonConfig]:
    """Makes a protocol; arms as texts, other fields as keywords."""

    def make(*arms: str, **fields: Any) -> ComparisonConfig:
        chosen = arms_from(arms or ("standard", "no-query"))
        delta = str(fields.pop("delta", 0.01))
        return ComparisonConfig(arms=chosen, shared=shared, delta=delta, **{"seeds": 3, **fields})

    return make


@pytest.fixture
def brief(protocol) -> ComparisonConfig:
    """A protocol of four trainings: two arms, two seeds."""
    return protocol(seeds=2, scales=(1.0,))


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FormulaRunner:
    """A runner that works by the formula; waiting for the disk would take longer than that."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
    return FormulaRunner(Store(tmp_path / "trainings"))
