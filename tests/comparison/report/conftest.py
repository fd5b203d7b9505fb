"""Comparisons as a laboratory would find them, made of smooth curves and seeded noise."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mlx_attn.comparison.result import ArmResult, Comparison, Point, TrialResult, Tuning

from ..conftest import judge

DELTA = 0.02
EFFECTS = {
    "standard": (0.0, 0.0),
    "merged": (0.003, 0.004),
    "no-out-proj": (0.045, 0.008),
    "no-value": (0.012, 0.02),
    "key-as-value": (-0.031, 0.006),
    "no-value-no-out-proj": (0.08, 0.02),
}
"""Each arm's true difference of loss, and the spread of its pairs."""


def training(seed: int, loss: float, at: float, points: int) -> TrialResult:
    """A training of 400 steps whose loss falls smoothly; seconds pass `at` times as slowly."""
    places = [round(400 * (i + 1) / points) for i in range(points)]
    falls = [loss + 2.2 * math.exp(-6 * place / 400) - 2.2 * math.exp(-6) for place in places]
    curve = [
        Point(step=step, tokens=512 * step, seconds=at * step / 40, val_loss=fallen)
        for step, fallen in zip(places, falls, strict=True)
    ]
    return TrialResult(
        seed=seed,
        lr_scale=1.0,
        steps=400,
        tokens=512 * 400,
        val_loss=curve[-1].val_loss,
        bits_per_byte=loss * 0.36,
        above_floor=loss - 0.52,
        curve=tuple(curve),
        tok_s=15_000 / at,
        seconds=at * 10,
        peak_memory=125_000_000,
    )


def arms_of(names: Sequence[str], seeds: int, points: int) -> list[ArmResult]:
    generator = np.random.default_rng(13)
    base = 0.9 + 0.02 * generator.normal(size=seeds)
    arms: list[ArmResult] = []
    for place, arm in enumerate(names):
        effect, noise = EFFECTS.get(arm, (0.01, 0.01))
        losses = base + (effect + noise * generator.normal(size=seeds) if place else 0)
        trained = [
            training(seed, float(loss), 1 + 0.2 * place, points) for seed, loss in enumerate(losses)
        ]
        result = ArmResult(
            arm=arm,
            settings={} if place == 0 else {"variant": arm, "n_heads": 4 + place},
            lr_scale=2.0 ** (place % 3 - 1),
            params=120_000 + 14_000 * place,
            multiply_adds=150_000 + 30_000 * place,
            cache_bytes_per_token=2048 // (1 + place % 2),
            trainings=tuple(trained),
        )
        arms.append(result)
    return arms


FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
FACTS: dict[str, Any] = {
    "name": "merged scores",
    "question": "May W_query and W_key be merged into one matrix?",
    "command": "mlx-attn compare standard merged no-out-proj no-value --seeds 5",
    "settings": {"preset": "nano", "steps": 400, "lr": 0.003, "position": "alibi"},
    "reference": "",
    "delta": DELTA,
    "delta_tokens": 0.0,
    "diverged": {"merged-both": "with seed 2 it diverged: loss nan at step 3"},
    "solving": {},
    "confidence": 0.95,
    "text": {"name": "tales", "digest": "3f9a" * 8, "floor": 0.52},
    "versions": {"python": "3.11.2", "mlx": "0.32.4", "machine": "a test"},
    "seconds": 4210.5,
}
"""What does not depend on the arms."""


def tuning(place: int, arm: str) -> Tuning:
    """Losses on a parabola over the factors; the second arm diverges at the largest one."""
    losses = {
        factor: 0.9 + 0.02 * (math.log2(factor) + 1 - place % 3) ** 2 + 0.003 * place
        for factor in FACTORS
    }
    return Tuning(
        arm=arm,
        losses={**losses, 4.0: None} if place == 1 else losses,
        best=2.0 ** (place % 3 - 1),
        interior=place != 2,
        seeds=(101, 102),
    )


@pytest.fixture(scope="session")
def comparison() -> Callable[..., Comparison]:
    """Makes a comparison: arms, seeds, points of a curve, and any field of its own."""

    def make(
        arms: Sequence[str] = ("standard", "merged", "no-out-proj", "no-value"),
        seeds: int = 5,
        points: int = 20,
        **changes: Any,
    ) -> Comparison:
        control, *others = made = arms_of(arms, seeds, points)
        differences = {
            arm.arm: [
                own.val_loss - control.trainings[seed].val_loss
                for seed, own in enumerate(arm.trainings)
            ]
            for arm in others
        }
        comparison = Comparison(
            control=arms[0],
            tunings=tuple(tuning(place, arm) for place, arm in enumerate(arms)),
            arms=tuple(made),
            verdicts=judge(differences, DELTA),
            **FACTS,
        )
        return replace(comparison, **changes)

    return make
