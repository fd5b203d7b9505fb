"""What a training will take, beside what it takes."""

import gc

import mlx.core as mx
import pytest

from mlx_attn.training.forecast import forecast
from mlx_attn.training.report import plan_facts, plan_rows


@pytest.fixture
def deep(trainer):
    """A training whose activations are most of its memory."""
    return lambda **settings: trainer(batch_size=96, n_layers=6, emb_dim=32, **settings)


@pytest.mark.parametrize(
    "settings", [{}, {"variant": "merged"}, {"checkpoint_blocks": True}, {"compile": "on"}]
)
def test_the_forecast_memory_is_what_steps_take_but_for_15_percent(
    deep, corpus, no_lookahead, settings
):
    expected = forecast(deep(**settings), corpus)
    gc.collect()
    mx.clear_cache()
    others = mx.get_active_memory()
    mx.reset_peak_memory()
    training = deep(**settings)
    for _ in range(3):
        mx.eval(*training.launch_step(), *training.step.state)
    assert expected.peak_memory == pytest.approx(mx.get_peak_memory() - others, rel=0.15)


def test_it_counts_the_steps_that_are_left_and_their_validations(trainer, corpus):
    training = trainer(steps=100, eval_every=20)
    training.progress.step = 40
    expected = forecast(training, corpus)
    assert (expected.steps, expected.validations) == (60, 3)
    total = 60 * expected.step_seconds + 3 * expected.validation_seconds
    assert expected.seconds == pytest.approx(total)


def test_a_training_bounded_by_the_clock_takes_as_many_steps_as_fit(trainer, corpus):
    expected = forecast(trainer(steps=0, minutes=1.0), corpus)
    assert expected.steps == pytest.approx(60 / expected.step_seconds, abs=1)


def test_the_training_itself_is_left_as_it_is(trainer, corpus):
    measured, other = trainer(), trainer()
    forecast(measured, corpus)
    losses = [training.launch_step()[0].item() for training in (measured, other)]
    assert losses[0] == losses[1]


def test_the_plan_says_it(trainer, corpus):
    training = trainer()
    expected = forecast(training, corpus)
    rows = dict(plan_rows(training, corpus, expected=expected))
    assert "at the peak" in rows["memory"]
    assert rows["time"].startswith("about 0:0")
    assert plan_facts(training, corpus, expected)["forecast"]["steps"] == 12
