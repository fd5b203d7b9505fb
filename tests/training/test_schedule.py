import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_attn.training.config import CHOICES, TrainConfig
from mlx_attn.training.optimizers import learning_rate_factor


def recipe(**changes) -> TrainConfig:
    return TrainConfig(**{"steps": 100, "warmup": 10, "lr": 1.0, "min_lr": 0.1, **changes})


def factor(config: TrainConfig, step: int, seconds: float = 0.0) -> float:
    return learning_rate_factor(config, step, config.steps, seconds)


@pytest.mark.parametrize("schedule", CHOICES["schedule"])
def test_the_warm_up_climbs_in_equal_steps_from_above_zero_to_the_peak(schedule):
    climb = [factor(recipe(schedule=schedule), step) for step in (0, 4, 9, 10)]
    assert climb == pytest.approx([1 / 11, 5 / 11, 10 / 11, 1])


@pytest.mark.parametrize(
    ("settings", "factors"),
    [
        ({"schedule": "cosine"}, {55: (1 + 0.1) / 2, 100: 0.1}),
        ({"schedule": "wsd", "cooldown": 0.4}, {64: 1, 82: (1 + 0.1) / 2, 100: 0.1}),
        ({"schedule": "wsd", "cooldown": 0.0}, {100: 1}),
        ({"schedule": "constant"}, {100: 1}),
    ],
    ids=["half of a cosine", "flat, then linear", "no cooldown", "constant"],
)
def test_after_the_warm_up_a_schedule_stays_or_falls_to_min_lr(settings, factors):
    config = recipe(**settings)
    assert {step: factor(config, step) for step in factors} == pytest.approx(factors)


def test_the_budget_that_is_nearer_to_its_end_moves_the_schedule():
    minutes, both = recipe(steps=0, minutes=2.0), recipe(minutes=1.0)
    assert factor(minutes, 500, seconds=60.0) == pytest.approx(0.55)
    assert factor(minutes, 500, seconds=120.0) == pytest.approx(0.1)
    assert factor(both, 20, seconds=60.0) == pytest.approx(0.1)
    assert factor(both, 100, seconds=1.0) == pytest.approx(0.1)


@settings(max_examples=100)
@given(
    st.sampled_from(CHOICES["schedule"]),
    st.integers(0, 300),
    st.integers(0, 300),
    st.integers(0, 400),
    st.floats(0, 1),
    st.floats(0, 1e4),
)
def test_the_factor_stays_between_the_end_and_the_peak(
    schedule, steps, warmup, step, cooldown, seconds
):
    config = recipe(
        schedule=schedule, steps=steps, warmup=warmup, cooldown=cooldown, minutes=10.0, min_lr=0.0
    )
    assert 0 <= learning_rate_factor(config, step, steps, seconds) <= 1
