"""The search for learning rates: as wide as it may be, on seeds of its own."""

from dataclasses import replace

import pytest
from scipy import stats

from mlx_attn.comparison.config import TUNING_SEED, arm_from
from mlx_attn.comparison.plan import trial_of
from mlx_attn.comparison.result import Point
from mlx_attn.comparison.tuning import Search, search_rates, tuning_pairs

from .conftest import conclude, training


@pytest.mark.parametrize(
    ("best", "scales"),
    [((0.02, 0.005), (2.0, 0.5)), ((0.04, 0.0025), (4.0, 0.25)), ((0.01, 0.01), (1.0, 1.0))],
)
def test_a_search_goes_on_until_the_best_rate_lies_between_others(protocol, runner, best, scales):
    runner.best_rates = dict(zip(("standard", "no-query"), best, strict=True))
    comparison = conclude(protocol(seeds=10), runner)
    assert tuple(arm.lr_scale for arm in comparison.arms) == scales
    assert [(t.best, t.interior) for t in comparison.tunings] == [(s, True) for s in scales]
    assert comparison.seconds == len(runner.done)  # each takes a second


@pytest.mark.parametrize("seeds", [3, 5, 6, 8, 10])
@pytest.mark.parametrize("delta", ["5%", 0.01])
def test_tuning_takes_at_most_half_of_the_trainings(protocol, runner, seeds, delta):
    runner.best_rates = dict.fromkeys(("standard", "no-query", "scores-off"), 1e6)
    config = protocol(seeds=seeds, delta=delta, reference=arm_from("scores-off"))
    tunings = conclude(config, runner).tunings
    of_tuning = sum(trial.seed >= TUNING_SEED for trial in runner.done)
    assert of_tuning <= len(runner.done) / 2
    assert of_tuning >= 3 * len(config.factors)
    assert not any(tuning.interior for tuning in tunings)


def test_an_arm_that_diverges_with_every_rate_has_no_result(protocol, runner):
    runner.diverges = ("no-query",)
    comparison = conclude(protocol(), runner)
    assert set(comparison.tunings[1].losses.values()) == {None}
    assert "diverged" in comparison.diverged["no-query"]
    assert comparison.verdicts == {}


@pytest.mark.parametrize(("task", "best"), [(True, 1.0), (False, 0.5)])
def test_a_rate_that_solves_a_task_more_often_beats_a_lower_mean(protocol, runner, task, best):
    """With 1.0 two of three seeds solve it, and the third fails by more than all three with 0.5."""
    losses = {0.5: (0.6, 0.6, 0.6), 1.0: (0.01, 0.01, 2.0), 2.0: (0.9, 0.9, 0.9)}
    config = protocol(seeds=9, tuning_seeds=3)
    for factor, each in losses.items():
        arm = replace(config.arms[0], lr_scale=factor)
        for place, loss in enumerate(each):
            share = (0.5 if loss > 0.1 else 1.0) if task else None
            end = Point(step=8, val_loss=loss, accuracy=share)
            trial = trial_of(config, arm, TUNING_SEED + place)
            runner.store[trial] = training(trial.seed, loss, steps=8, curve=(end,), accuracy=share)
    assert search_rates(config, runner.store, config.arms[0]).best == best


def test_one_factor_turns_tuning_off_and_scales_all_learning_rates_together(protocol, runner):
    runner.noise = 0.01
    comparison = conclude(protocol(scales=(0.5,)), runner)
    assert comparison.tunings == ()
    verdict = comparison.verdicts["no-query"]
    untuned = stats.ttest_1samp(verdict.differences, 0).confidence_interval(0.95)
    assert verdict.interval == pytest.approx(untuned)
    assert {trial.lr_scale for trial in runner.done} == {0.5}
    recipe = runner.done[0].settings.training
    assert (recipe.lr, recipe.muon_lr) == (0.005, 0.015)


def test_differences_of_tuning_runs_are_formed_beside_the_best_rate_of_each_arm():
    """No run is in two groups; the second arm's rates are half of the first's."""
    control = Search(losses={0.5: (1.2, 1.3), 1.0: (1.0, 1.1), 2.0: (1.4, 1.6)}, best=1.0)
    slower = {0.25: (1.3, 1.5), 0.5: (1.1, 1.3), 1.0: (1.5, 1.8), 2.0: (9.0, 9.9)}
    arm = Search(losses=slower, best=0.5)
    assert tuning_pairs(arm, control) == tuple(pytest.approx((0.1, 0.2)) for _ in range(3))
    edge = Search(losses={1.0: (1.0, 1.1), 2.0: (1.4, float("inf"))}, best=1.0)
    assert [len(group) for group in tuning_pairs(edge, control)] == [2, 1]
    assert tuning_pairs(Search(losses={}, best=1.0), control) == ()


def test_the_spread_of_tuning_runs_counts_in_a_comparison(protocol, runner):
    runner.noise = 0.01
    tuned = conclude(protocol(seeds=9, tuning_seeds=3), runner).verdicts["no-query"]
    untuned = conclude(protocol(seeds=9, scales=(1.0,)), runner).verdicts["no-query"]
    assert (tuned.lent, untuned.lent) == (6, 0)
