"""benchmarks/scale.py: a farm of workers, simulated."""

from scale import simulate


def test_the_same_seed_is_the_same_table():
    assert simulate(8, 200, 60.0, 0.01, 1.0, 0) == simulate(8, 200, 60.0, 0.01, 1.0, 0)


def test_without_failures_and_cost_only_the_end_is_lost():
    calm = simulate(4, 4000, 60.0, 0.0, float("inf"), 0)
    assert (calm["lost"], calm["wasted"], calm["handing out"]) == (0, 0, 0)
    assert 0.99 < calm["efficiency"] <= 1


def test_the_process_that_hands_out_bounds_many_workers():
    assert simulate(400, 4000, 1.0, 0.01, float("inf"), 0)["hours"] * 3600 >= 4000 * 0.01
