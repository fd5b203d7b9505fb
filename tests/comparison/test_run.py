"""Whole comparisons, with trainings by formula: what is trained, resumed and concluded."""

from math import log

import pytest

from mlx_attn.comparison.plan import ComparisonConfig, arm_from, margin_from
from mlx_attn.comparison.result import read_comparison, save_comparison
from mlx_attn.comparison.run import ComparisonRun
from mlx_attn.comparison.show import answer_of
from mlx_attn.comparison.stages import Planned
from mlx_attn.errors import ConfigError, RunError


@pytest.fixture
def verdict_of(protocol, conclusion):
    """The verdict on no-query after equal steps, of a protocol with these fields."""
    return lambda runner, **fields: (
        conclusion(protocol(**fields), runner).budget("steps").verdicts["no-query"]
    )


def test_differences_are_paired_by_seed_and_the_control_runs_against_itself(
    protocol, runner, conclusion
):
    runner.noise, runner.rounding = 0.01, 1e-3
    comparison = conclusion(protocol(), runner)
    budget = comparison.budget("steps")
    control, arm = budget.arms
    pairs = zip(arm.trainings, control.trainings, strict=True)
    expected = [one.val_loss - other.val_loss for one, other in pairs]
    assert budget.verdicts["no-query"].differences == pytest.approx(expected)
    assert [training.seed for training in arm.trainings] == [0, 1, 2]
    # Tuning's noise widens the interval.
    assert budget.verdicts["no-query"].tuning_error > 0
    again = [trial for trial in runner.done if trial.settings["init_seed"] >= 0]
    assert [(trial.arm, trial.seed) for trial in again] == [("standard", i) for i in range(3)]
    assert len(comparison.noise.verdict.differences) == 3
    assert comparison.noise.seed_spread > 0
    assert comparison.noise.rounding == pytest.approx(1e-3)
    assert conclusion(protocol(noise=False), runner).noise is None


def test_a_budget_changes_the_steps_of_a_slower_arm_or_the_width_of_a_smaller_one(
    protocol, runner, conclusion, shared
):
    comparison = conclusion(protocol("standard", "merged", "no-query"), runner)
    steps = {arm.arm: arm.trainings[0].steps for arm in comparison.budget("seconds").arms}
    assert steps == {"standard": 8, "merged": 4, "no-query": 8}
    control, _, smaller = comparison.budget("params").arms
    assert abs(smaller.params - control.params) <= 0.005 * control.params
    assert smaller.settings["hidden_dim"] > 64
    # Its attention alone is too large: no width is narrow enough.
    shared["n_heads"], shared["hidden_dim"] = 16, 4
    result = conclusion(protocol("standard", "merged"), runner).budget("params")
    assert "parameters more than the control" in result.refused["merged"]
    assert [arm.arm for arm in result.arms] == ["standard"]


@pytest.mark.parametrize(
    ("effect", "rounding", "word"),
    [
        (0.2, 0.0, "worse"),
        (0.0, 0.0, "equivalent"),
        (0.2, 0.199, "undecided"),
        (0.0, 0.0095, "undecided"),
    ],
    ids=["planted", "none", "a rounding could undo it", "a rounding could make one"],
)
def test_a_planted_difference_is_found_unless_a_rounding_could_turn_the_word(
    runner, verdict_of, effect, rounding, word
):
    runner.noise, runner.effects, runner.rounding = 0.001, {"no-query": effect}, rounding
    assert verdict_of(runner, seeds=5).word == word


def test_another_seed_or_arm_costs_only_its_own_trainings_and_another_text_all(
    protocol, runner, story, conclusion
):
    conclusion(protocol("standard", "no-query"), runner)
    first = len(runner.done)
    conclusion(protocol("standard", "no-query", seeds=4), runner)
    assert {trial.seed for trial in runner.done[first:]} == {3}
    second = len(runner.done)
    conclusion(protocol("standard", "no-query", "no-value"), runner)
    assert {trial.arm for trial in runner.done[second:]} == {"no-value"}
    third = len(runner.done)
    story.write_text(story.read_text() + "the end. " * 30)
    conclusion(protocol("standard", "no-query"), runner)
    assert len(runner.done) == third + first


@pytest.mark.parametrize("finished", [1, 20])
def test_an_interrupted_comparison_ends_like_an_uninterrupted_one(
    protocol, runners, finished, conclusion
):
    whole = runners("whole", noise=0.01)
    cut = runners("cut", noise=0.01, fails_after=finished)
    with pytest.raises(KeyboardInterrupt):
        conclusion(protocol(), cut)
    cut.fails_after = float("inf")
    assert conclusion(protocol(), cut) == conclusion(protocol(), whole)
    assert len(cut.done) == len(whole.done)


@pytest.fixture
def planned(protocol, runner):
    """The plan that a comparison announces."""
    return lambda **fields: next(
        event for event in ComparisonRun(protocol(**fields), runner) if isinstance(event, Planned)
    )


def test_time_decides_on_the_seeds(planned):
    # 30 tuning trainings of 1 s; a seed is 4: the control, its A/A run, and the arm, which is as
    # fast as the control, with its own and with as many parameters.
    assert planned(seeds=0, minutes=1.0).seeds == int((2 * 60 - 30) / 4)
    with pytest.raises(ConfigError, match=r"at least 3 are needed"):
        planned(seeds=0, minutes=0.2)


def test_the_plan_says_what_difference_it_can_resolve_if_it_tunes(planned, runner):
    runner.noise = 0.02
    assert 0 < planned(seeds=8).resolves < planned(seeds=3).resolves
    assert planned(scales=(1.0,)).resolves is None


def test_a_control_that_diverges_ends_the_comparison(protocol, runner, conclusion):
    runner.diverges = ("standard",)
    with pytest.raises(RunError, match="the control diverged"):
        conclusion(protocol(budgets=("steps",)), runner)


def test_the_result_survives_its_file(protocol, runner, tmp_path, conclusion):
    runner.noise = 0.01
    comparison = conclusion(protocol(), runner)
    save_comparison(comparison, tmp_path)
    assert read_comparison(tmp_path) == comparison


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"budgets": ("watts",)}, "budget 'watts'"),
        ({"budgets": ()}, "no budget"),
        ({"seeds": 0}, "give minutes"),
        ({"seeds": -1}, "seeds=-1 must be at least 0"),
        ({"delta": -0.01}, "delta=-0.01"),
        ({"confidence": 1.0}, "confidence=1.0"),
        ({"scales": ()}, "at least one"),
        ({"tuning_seeds": 0}, "tuning_seeds=0"),
        ({"seeds": 10_001}, "seeds=10001 must be at most 10000"),
        ({"minutes": float("nan")}, "minutes=nan must be"),
        ({"looks": (1, 5)}, "must be numbers of seeds"),
        ({"looks": (5, 5)}, "must be numbers of seeds"),
    ],
)
def test_a_protocol_that_cannot_work_is_refused(protocol, fields, complaint):
    with pytest.raises(ConfigError, match=complaint):
        protocol(**fields)


@pytest.mark.parametrize(
    ("arms", "changes", "complaint"),
    [
        (["standard", "odd: standard, n_heads=3"], {}, "n_heads"),
        ([], {"epochs": 1.0}, "counts steps"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_is_trained(
    protocol, runner, shared, arms, changes, complaint
):
    shared |= changes
    with pytest.raises(ConfigError, match=complaint):
        ComparisonRun(protocol(*arms), runner)
    assert runner.done == []


@pytest.mark.parametrize(
    ("worth", "word", "share"), [(0.3, "worse", 0.1), (0.035, "insensitive", None)]
)
def test_a_difference_is_a_share_of_what_the_part_is_worth_which_may_be_too_little(
    protocol, runner, conclusion, worth, word, share
):
    runner.effects = {"no-query": 0.03, "scores-off": worth}
    comparison = conclusion(protocol(reference=arm_from("scores-off")), runner)
    verdicts = comparison.budget("steps").verdicts
    assert (verdicts["scores-off"].word, verdicts["no-query"].word) == ("worse", word)
    assert verdicts["scores-off"].mean == pytest.approx(worth)
    assert verdicts["no-query"].share == pytest.approx(share)
    # Under all three budgets it has the same steps, and so the same trainings.
    assert len([t for t in runner.done if t.arm == "scores-off" and t.seed < 100]) == 3


@pytest.mark.parametrize(
    ("noise", "looks", "word", "seeds"),
    [(0.001, (5, 8, 12), "worse", 5), (0.3, (3, 4), "undecided", 4)],
    ids=["the first look that decides", "the last look"],
)
def test_until_decided_ends_at_the_first_look_that_decides_or_with_the_last(
    protocol, runner, conclusion, noise, looks, word, seeds
):
    runner.noise, runner.effects = noise, {"no-query": 0.2}
    comparison = conclusion(protocol(looks=looks), runner)
    verdict = comparison.budget("steps").verdicts["no-query"]
    assert (verdict.word, len(verdict.differences)) == (word, seeds)
    assert comparison.looks == looks


def test_each_look_spends_its_share_of_the_error(runner, verdict_of):
    """The same five seeds: what one look decides, the first of many may not."""
    runner.noise, runner.effects = 0.002, {"no-query": 0.2}
    once, first = verdict_of(runner, seeds=5), verdict_of(runner, looks=(5, 8, 12, 16))
    assert once.differences == first.differences
    assert once.p_holm == first.p_holm
    assert first.interval[0] < once.interval[0] < once.interval[1] < first.interval[1]


def test_a_task_is_judged_by_how_soon_it_is_solved_and_not_by_the_mean_loss(
    protocol, runner, conclusion
):
    runner.noise, runner.effects = 0.002, {"no-query": -0.2}
    runner.shares = {"standard": 1.0, "no-query": 0.4}
    comparison = conclusion(protocol(seeds=5, budgets=("steps",), reference=None), runner)
    budget = comparison.budget("steps")
    assert budget.verdicts["no-query"].word == "better"
    assert budget.word("no-query") == budget.solving["no-query"].word == "worse"
    assert (
        "no-query solves the task later or less often than standard: 0 of 5 seeds against "
        in (answer_of(comparison, "no-query")[1][0])
    )


@pytest.mark.parametrize(
    ("shares", "effect", "solving", "word"),
    [
        ({"standard": 1.0, "no-query": 1.0}, 0.0, "undecided", "equivalent"),
        ({"standard": 0.6, "no-query": 0.5}, 0.2, None, "worse"),
        ({}, 0.0, None, "equivalent"),
    ],
    ids=["solved alike", "solved by none", "a text"],
)
def test_where_solving_decides_nothing_the_mean_loss_does(
    protocol, runner, conclusion, shares, effect, solving, word
):
    runner.noise, runner.shares, runner.effects = 0.001, shares, {"no-query": effect}
    budget = conclusion(protocol(seeds=5, reference=None), runner).budget("steps")
    assert {name: found.word for name, found in budget.solving.items()}.get("no-query") == solving
    assert budget.word("no-query") == word


def test_a_margin_in_tokens_is_what_they_are_worth_to_the_control(
    protocol, runner, conclusion, shared
):
    runner.token_worth, shared["steps"] = 0.1, 1000
    made = protocol(budgets=("steps",), delta=0.0, **margin_from("5%"))
    comparison = conclusion(made, runner)
    assert comparison.delta == pytest.approx(0.1 * log(1 / 0.95), rel=1e-2)
    assert answer_of(comparison, "no-query")[1][0].startswith(
        "no-query is equivalent to standard within 0.00513 nats per token (5 % of the tokens)"
    )
    shorter = {trial.seed for trial in runner.done if trial.settings["steps"] == 800}
    assert shorter == {0, 1, 2}
    runner.done.clear()
    assert conclusion(protocol(delta=0.02), runner).delta == 0.02
    assert not [trial for trial in runner.done if trial.settings["steps"] == 800]


def test_the_margin_is_five_percent_of_the_tokens_unless_another_is_named():
    arms = ("standard", "no-query")
    plans = ComparisonConfig.of(arms), ComparisonConfig.of(arms, delta=0.01)
    assert [(plan.delta, plan.delta_tokens) for plan in plans] == [(0.0, 0.05), (0.01, 0.05)]


def test_if_tokens_are_worth_nothing_every_difference_counts(protocol, runner, conclusion):
    runner.token_worth = -0.1
    comparison = conclusion(protocol(delta=0.0, reference=None), runner)
    assert comparison.delta == 0.0
    assert comparison.budget("steps").verdicts["no-query"].word == "undecided"
    assert "below 0 nats per token (5 % of the tokens)" in answer_of(comparison, "no-query")[1][0]


@pytest.mark.parametrize("text", ["0", "five", "100%", "5%x", "nan"])
def test_a_margin_that_is_none_is_refused(text):
    with pytest.raises(ConfigError, match="must be above 0, in nats per token"):
        margin_from(text)
