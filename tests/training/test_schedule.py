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
def test_the_warm_up_climbs_in_equal_steps_and_never_starts_at_zero(schedule):
    config = recipe(schedule=schedule)
    assert [factor(config, step) for step in (0, 4, 9)] == pytest.approx([1 / 11, 5 / 11, 10 / 11])


@pytest.mark.parametrize("schedule", CHOICES["schedule"])
def test_after_the_warm_up_the_peak_is_reached(schedule):
    assert factor(recipe(schedule=schedule), 10) == 1


def test_the_cosine_is_half_way_in_the_middle_and_ends_at_min_lr():
    config = recipe(schedule="cosine")
    assert factor(config, 55) == pytest.approx((1 + 0.1) / 2)
    assert factor(config, 100) == pytest.approx(0.1)


def test_wsd_stays_at_the_peak_and_then_falls_linearly_to_min_lr():
    config = recipe(schedule="wsd", cooldown=0.5)
    assert factor(config, 55) == 1
    assert factor(config, 77) == pytest.approx((factor(config, 55) + factor(config, 99)) / 2)
    assert factor(config, 100) == pytest.approx(0.1)


def test_wsd_without_cooldown_never_falls():
    assert factor(recipe(schedule="wsd", cooldown=0.0), 100) == 1


def test_a_constant_schedule_stays_at_the_peak():
    assert factor(recipe(schedule="constant"), 100) == 1


def test_a_budget_in_minutes_moves_the_schedule_by_the_clock():
    config = recipe(steps=0, minutes=2.0)
    assert factor(config, 500, seconds=60.0) == pytest.approx(0.55)
    assert factor(config, 500, seconds=120.0) == pytest.approx(0.1)


def test_with_two_budgets_the_one_that_is_nearer_to_its_end_decides():
    config = recipe(minutes=1.0)
    assert factor(config, 20, seconds=60.0) == pytest.approx(0.1)
    assert factor(config, 100, seconds=1.0) == pytest.approx(0.1)


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
