"""The search for learning rates: as wide as it takes, on seeds of its own."""

import pytest

from mlx_attn.comparison.plan import TUNING_SEED, Trial, arm_from
from mlx_attn.comparison.result import Point, TrialResult
from mlx_attn.comparison.trial import Diverged, has_failed
from mlx_attn.comparison.tuning import Replicates, replicates_of, search_rates
from mlx_attn.errors import ConfigError

from .conftest import training


def task_training(accuracy: float) -> TrialResult:
    """A training on a task, evaluated at its end."""
    point = Point(step=10, tokens=100, seconds=1.0, val_loss=0.1, accuracy=accuracy)
    return training(curve=(point,), accuracy=accuracy)


@pytest.mark.parametrize(
    ("best", "scales"),
    [((0.02, 0.005), (2.0, 0.5)), ((0.16, 0.16), (16.0, 16.0)), ((0.000625, 0.01), (0.0625, 1.0))],
)
def test_a_search_goes_on_until_the_best_rate_of_each_arm_lies_between_others(
    protocol, runner, best, scales, conclusion
):
    runner.best_rates = dict(zip(("standard", "no-query"), best, strict=True))
    comparison = conclusion(protocol(), runner)
    assert tuple(arm.lr_scale for arm in comparison.budgets[0].arms) == scales
    assert [(t.best, t.interior) for t in comparison.tunings] == [(s, True) for s in scales]


def test_a_search_that_would_go_on_for_ever_ends_and_says_so(protocol, runner, conclusion):
    runner.best_rates = {"standard": 1e6, "no-query": 1e6}
    tuning = conclusion(protocol(), runner).tunings[0]
    assert not tuning.interior
    assert tuning.best == max(tuning.losses)


def test_tuning_uses_seeds_of_its_own(protocol, runner, conclusion):
    conclusion(protocol(tuning_seeds=2), runner)
    seeds = {trial.seed for trial in runner.done if trial.seed >= TUNING_SEED}
    verdict = {trial.seed for trial in runner.done if trial.seed < TUNING_SEED}
    assert seeds == {TUNING_SEED, TUNING_SEED + 1}
    assert verdict == {0, 1, 2}


def test_a_rate_that_diverges_is_not_chosen(protocol, runner, conclusion):
    runner.diverges = ("no-query",)
    comparison = conclusion(protocol(budgets=("steps",)), runner)
    assert set(comparison.tunings[1].losses.values()) == {None}
    assert "diverged" in comparison.budgets[0].refused["no-query"]


def trial(seed: int, lr_scale: float) -> Trial:
    return Trial("standard", {"seed": seed}, lr_scale, text="")


@pytest.mark.parametrize(("task", "best"), [(True, 1.0), (False, 0.5)])
def test_on_a_task_the_rate_with_which_most_seeds_solve_it_beats_one_with_a_lower_mean(task, best):
    """With 1.0 two of three seeds solve it, and the third fails by more than all three with 0.5."""
    losses = {0.5: (0.6, 0.6, 0.6), 1.0: (0.01, 0.01, 2.0), 2.0: (0.9, 0.9, 0.9)}

    def loss(one: Trial) -> float:
        return losses[one.lr_scale][one.seed]

    search = search_rates(
        lambda factor, ratio: [trial(seed, factor) for seed in range(3)],
        loss,
        (0.5, 1.0, 2.0),
        extensions=0,
        failed=lambda one: task and loss(one) > 0.1,
    )
    assert search.best == best


@pytest.mark.parametrize(
    ("outcome", "failed"),
    [
        (Diverged("loss nan at step 3"), True),
        (training(), False),
        (task_training(accuracy=0.5), True),
        (task_training(accuracy=0.995), False),
    ],
    ids=["diverged", "a text", "not solved", "solved"],
)
def test_a_training_fails_if_it_diverges_or_does_not_solve_its_task(outcome, failed):
    assert has_failed(outcome) == failed


def test_one_factor_turns_tuning_off_and_scales_all_learning_rates_together(
    protocol, runner, conclusion
):
    comparison = conclusion(protocol(scales=(0.5,)), runner)
    assert comparison.tunings == ()
    assert {trial.lr_scale for trial in runner.done} == {0.5}
    settings = runner.done[0].settings
    assert (settings["lr"], settings["muon_lr"]) == (0.005, 0.015)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_no_arm_has_a_rate_besides_the_factor_of_all(
    protocol, runner, shared, conclusion, optimizer
):
    shared["optimizer"] = optimizer
    comparison = conclusion(protocol("standard", "merged", budgets=("steps",)), runner)
    assert [tuning.arm for tuning in comparison.tunings] == ["standard", "merged"]
    assert {trial.settings.get("merged_lr", 0.0) for trial in runner.done} == {0.0}


def test_a_second_search_gives_every_arm_its_rate_of_queries_and_keys(protocol, runner, conclusion):
    runner.best_rates, runner.best_query_key = {"merged": 0.02}, {"merged": 0.5}
    scales = {"query_key_scales": (0.5, 1.0, 2.0), "reference": arm_from("scores-off")}
    plan = protocol("standard", "merged", budgets=("steps",), **scales)
    comparison = conclusion(plan, runner)
    chosen = {t.arm: (t.best, t.query_key_lr) for t in comparison.tunings}
    assert chosen == {"standard": (1.0, 1.0), "merged": (2.0, 0.5), "scores-off": (1.0, 1.0)}
    assert comparison.tunings[1].query_key_losses == pytest.approx(
        {0.25: 1.1, 0.5: 1, 1: 1.1, 2: 1.4}
    )
    assert not any(tuning.at_edge for tuning in comparison.tunings)
    merged = comparison.budgets[0].arms[1]
    assert merged.settings == {"variant": "merged", "query_key_lr": 0.5}
    assert comparison.budgets[0].verdicts["merged"].mean == pytest.approx(0.0)
    assert comparison.tunings[2].query_key_losses == {}, "there is nothing to search for"
    # The factor 1 is the training that the first search knows.
    trained = [trial.digest for trial in runner.done]
    assert len(trained) == len({*trained})


def test_a_second_search_that_ends_at_its_edge_says_so(protocol, runner, conclusion):
    runner.best_query_key = {"standard": 64.0}
    plan = protocol(budgets=("steps",), query_key_scales=(0.5, 1.0, 2.0))
    standard, other = conclusion(plan, runner).tunings
    assert (standard.interior, standard.query_key_lr, standard.at_edge) == (True, 4.0, True)
    assert not other.at_edge


def test_what_both_choices_cost_is_in_the_interval(protocol, runner, conclusion):
    runner.noise = 0.05
    both = protocol(budgets=("steps",), query_key_scales=(0.5, 1.0, 2.0))
    one, two = (conclusion(plan, runner) for plan in (protocol(budgets=("steps",)), both))
    errors = [each.budget("steps").verdicts["no-query"].tuning_error for each in (one, two)]
    assert errors[0] < errors[1]


def test_a_second_search_needs_the_first(protocol):
    with pytest.raises(ConfigError, match="give several scales"):
        protocol(scales=(1.0,), query_key_scales=(0.5, 1.0))


def test_differences_of_tuning_runs_are_formed_beside_the_best_rate_of_each_arm():
    """No run is in two groups; the second arm's rates are half of the first's."""
    control = {0.5: (1.2, 1.3), 1.0: (1.0, 1.1), 2.0: (1.4, 1.6)}
    arm = {0.25: (1.3, 1.5), 0.5: (1.1, 1.3), 1.0: (1.5, 1.8), 2.0: (9.0, 9.9)}
    groups = replicates_of(arm, control)
    assert groups.differences == tuple(pytest.approx((0.1, 0.2)) for _ in range(3))
    assert groups.control == ((1.2, 1.3), (1.0, 1.1), (1.4, 1.6))
    above = {1.0: (1.0, 1.1), 2.0: (1.4, 1.6)}  # no rates below the best
    assert len(replicates_of(above, above).differences) == 2
    assert replicates_of({}, above) == Replicates()


def test_the_spread_of_tuning_runs_counts_in_a_comparison(protocol, runner, conclusion):
    runner.noise = 0.01
    tuned = conclusion(protocol(budgets=("steps",)), runner).budget("steps").verdicts["no-query"]
    fixed = protocol(budgets=("steps",), scales=(1.0,))
    untuned = conclusion(fixed, runner).budget("steps").verdicts["no-query"]
    assert (tuned.df, untuned.df) == (2 + 6, 2)
