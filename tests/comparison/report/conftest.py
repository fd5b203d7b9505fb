"""Comparisons as a laboratory would find them, made of smooth curves and seeded noise."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mlx_attn.comparison.result import (
    AATest,
    ArmResult,
    BudgetResult,
    Comparison,
    Point,
    RankPoint,
    TrialResult,
    Tuning,
)

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

SAMPLE = 'Once <script>alert("x")</script> Anna saw a | fox & <b>ran</b> ``` `x`\n\u202eÜber 龍\x00'


def training(seed: int, loss: float, steps: int, at: float = 1.0, points: int = 20) -> TrialResult:
    """A training whose loss falls smoothly to `loss`; seconds pass `at` times as slowly."""
    places = [round(steps * (i + 1) / points) for i in range(points)]
    falls = [loss + 2.2 * math.exp(-6 * place / steps) - 2.2 * math.exp(-6) for place in places]
    curve = [
        Point(step=step, tokens=512 * step, seconds=at * step / 40, val_loss=fallen)
        for step, fallen in zip(places, falls, strict=True)
    ]
    ranks = [
        RankPoint(step=p.step, scores=15 - 6 * p.step / steps + loss, value_outputs=14 - loss)
        for p in curve
    ]
    return TrialResult(
        seed=seed,
        lr_scale=1.0,
        steps=steps,
        tokens=512 * steps,
        val_loss=curve[-1].val_loss,
        bits_per_byte=loss * 0.36,
        above_floor=loss - 0.52,
        accuracy=None,
        abilities={
            "grammar": 0.01 * loss,
            "agreement": 0.02 * loss,
            "recall": 0.09 * loss**2,
            "copy": 0.05 * loss,
            "counting": 0.004,
        },
        curve=tuple(curve),
        ranks=tuple(ranks),
        tok_s=15_000 / at,
        seconds=at * steps / 40,
        peak_memory=125_000_000,
        sample=SAMPLE,
    )


def budget(name: str, names: Sequence[str], seeds: int, points: int) -> BudgetResult:
    generator = np.random.default_rng(sum(map(ord, name)))
    base = 0.9 + 0.02 * generator.normal(size=seeds)
    arms: list[ArmResult] = []
    differences: dict[str, list[float]] = {}
    for place, arm in enumerate(names):
        effect, noise = EFFECTS.get(arm, (0.01, 0.01))
        slower = 1.0 if name == "seconds" else 1 + 0.2 * place
        pairs = effect * (1 + 0.5 * (name == "seconds")) + noise * generator.normal(size=seeds)
        losses = base + (pairs if place else 0)
        trained = tuple(
            training(seed, float(loss), 400 - 30 * place * (name == "seconds"), slower, points)
            for seed, loss in enumerate(losses, 1)
        )
        result = ArmResult(
            arm=arm,
            settings={} if place == 0 else {"variant": arm, "n_heads": 4 + place},
            lr_scale=2.0 ** (place % 3 - 1),
            params=120_000 if name == "params" else 120_000 + 14_000 * place,
            multiply_adds=150_000 + 30_000 * place,
            cache_bytes_per_token=2048 // (1 + place % 2),
            trainings=trained,
        )
        arms.append(result)
        both = zip(trained, arms[0].trainings, strict=True)
        differences[arm] = [own.val_loss - control.val_loss for own, control in both]
    del differences[names[0]]
    verdicts = judge(differences, DELTA)
    return BudgetResult(budget=name, arms=tuple(arms), refused={}, verdicts=verdicts)


FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
REFUSED = {"merged-both": "its attention alone has 131,072 parameters, the budget 120,000"}
FACTS: dict[str, Any] = {
    "name": "merged scores",
    "question": "May W_query and W_key be merged into one matrix?",
    "command": "mlx-attn compare standard merged no-out-proj no-value --seeds 5",
    "settings": {"preset": "nano", "steps": 400, "lr": 0.003, "position": "alibi"},
    "delta": DELTA,
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
    """Makes a comparison: arms, budgets, seeds, points of a curve, and any field of its own."""

    def make(
        arms: Sequence[str] = ("standard", "merged", "no-out-proj", "no-value"),
        budgets: Sequence[str] = ("steps", "seconds", "params"),
        seeds: int = 5,
        points: int = 20,
        **changes: Any,
    ) -> Comparison:
        results = [budget(name, arms, seeds, points) for name in budgets]
        if len(results) == 3:
            results[2] = replace(results[2], refused=REFUSED)
        alone = judge({arms[0]: [0.004, -0.006, 0.003, 0.001, -0.002]}, DELTA)[arms[0]]
        made = Comparison(
            control=arms[0],
            noise=AATest(rounding=0.0, seed_spread=0.0213, verdict=alone),
            tunings=tuple(tuning(place, arm) for place, arm in enumerate(arms)),
            budgets=tuple(results),
            **FACTS,
        )
        return replace(made, **changes)

    return make
