"""A comparison by formula: one form is the same, one is worse, and of one it is not known."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from mlx_attn.comparison.config import Arm
from mlx_attn.comparison.result import Comparison, Tuning
from tests.comparison.conftest import conclude

ARMS = ("standard", "merged", "no-out-proj", "no-value", "merged-both")
LOSSES = {1.0: 0.9, 2.0: 0.8, 4.0: None}
TUNING = Tuning(arm="standard", losses=LOSSES, best=2.0, interior=False, seeds=(101, 102))


@pytest.fixture
def comparison(protocol, runner) -> Callable[..., Comparison]:
    """Makes a comparison: names of arms, with seeds, and any field of its own."""

    def make(arms: Sequence[str] = ARMS, seeds: int = 5, **changes: Any) -> Comparison:
        runner.noise, runner.diverges = 0.01, ("merged-both",)
        runner.effects = {"merged": 0.002, "no-out-proj": 0.12, "no-value": 0.0135}
        plain = protocol(seeds=seeds, delta=0.02, scales=(1.0,))
        forms = (Arm(name, {"variant": form}) for name, form in zip(arms, ARMS, strict=False))
        made = conclude(replace(plain, arms=tuple(forms)), runner)
        return replace(made, **{"tunings": (TUNING,), **changes})

    return make
