"""benchmarks/scale.py: a farm of workers, simulated."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def scale() -> Any:
    sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
    try:
        return importlib.import_module("scale")
    finally:
        sys.path.pop()


def test_the_same_seed_is_the_same_table(scale):
    assert scale.simulate(8, 200, 60.0, 0.01, 1.0, 0) == scale.simulate(8, 200, 60.0, 0.01, 1.0, 0)


def test_without_failures_and_cost_only_the_end_is_lost(scale):
    calm = scale.simulate(4, 4000, 60.0, 0.0, float("inf"), 0)
    assert (calm["lost"], calm["wasted"], calm["handing out"]) == (0, 0, 0)
    assert 0.99 < calm["efficiency"] <= 1


def test_the_process_that_hands_out_bounds_many_workers(scale):
    one = scale.simulate(400, 4000, 1.0, 0.01, float("inf"), 0)
    assert one["hours"] * 3600 >= 4000 * 0.01
