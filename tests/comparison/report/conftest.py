"""A comparison as a laboratory would find it, made of smooth curves and seeded noise."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mlx_attn.comparison.result import ArmResult, Comparison, Point, TrialResult, Tuning

from ..conftest import judge, training

DELTA = 0.02
EFFECTS = {"merged": (0.003, 0.004), "no-out-proj": (0.045, 0.008), "no-value": (0.012, 0.02)}
"""Each arm's true difference of loss, and the spread of its pairs: the same, worse, not known."""

FACTS: dict[str, Any] = {
    "name": "merged scores",
    "question": "May W_query and W_key be merged into one matrix?",
    "command": "mlx-attn compare --variants standard,merged,no-out-proj,no-value",
    "reference": "",
    "settings": {"preset": "nano", "steps": 400, "position": "alibi"},
    "delta": DELTA,
    "delta_tokens": 0.0,
    "confidence": 0.95,
    "text": {"name": "tales", "digest": "3f9a" * 8, "floor": 0.52},
    "versions": {"python": "3.11.2", "mlx": "0.32.4"},
    "diverged": {"merged-both": "with seed 2 it diverged: loss nan at step 3"},
    "solving": {},
    "seconds": 4210.5,
}
"""What does not depend on the arms."""


def falling(seed: int, loss: float, points: int) -> TrialResult:
    """A training of 400 steps whose loss falls smoothly."""
    steps = [round(400 * (i + 1) / points) for i in range(points)]
    falls = [loss + 2.2 * (math.exp(-step / 67) - math.exp(-6)) for step in steps]
    curve = [
        Point(step=step, tokens=512 * step, seconds=step / 40, val_loss=fallen)
        for step, fallen in zip(steps, falls, strict=True)
    ]
    facts = {"steps": 400, "tokens": 204_800, "tok_s": 15_000.0, "bits_per_byte": 0.36 * loss}
    return training(seed, falls[-1], curve=tuple(curve), **facts)


def arm_of(name: str, place: int, losses: Sequence[float], points: int) -> ArmResult:
    return ArmResult(
        arm=name,
        settings={"variant": name},
        lr_scale=2.0,
        params=120_000 + 14_000 * place,
        cache_bytes_per_token=2048,
        trainings=tuple(falling(seed, loss, points) for seed, loss in enumerate(losses)),
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
        random = np.random.default_rng(13)
        losses = {arms[0]: 0.9 + 0.02 * random.normal(size=seeds)}
        differences: dict[str, Sequence[float]] = {}
        for arm in arms[1:]:
            effect, noise = EFFECTS.get(arm, (0.01, 0.01))
            differences[arm] = (effect + noise * random.normal(size=seeds)).tolist()
            losses[arm] = losses[arms[0]] + differences[arm]
        tuned: dict[str, Any] = {"best": 2.0, "interior": False, "seeds": (101, 102)}
        made = Comparison(
            control=arms[0],
            tunings=(Tuning(arm=arms[0], losses={1.0: 0.9, 2.0: 0.8, 4.0: None}, **tuned),),
            arms=tuple(
                arm_of(arm, place, each.tolist(), points)
                for place, (arm, each) in enumerate(losses.items())
            ),
            verdicts=judge(differences, DELTA),
            **FACTS,
        )
        return replace(made, **changes)

    return make
