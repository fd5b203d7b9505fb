"""Whole comparisons, with trainings by formula: what is trained, resumed and concluded."""

from math import log

import pytest

from mlx_attn.comparison.plan import arm_from, margin_from
from mlx_attn.comparison.result import read_comparison, save_comparison
from mlx_attn.comparison.run import ComparisonRun
from mlx_attn.comparison.runner import Planned
from mlx_attn.comparison.show import answer_of
from mlx_attn.errors import ConfigError, RunError


def differences(comparison, arm, budget="steps"):
    return comparison.budget(budget).verdicts[arm].differences


@pytest.fixture
def verdict_of(protocol, conclusion):
    """The verdict on no-query after equal steps, of a protocol with these fields."""
    return lambda runner, **fields: (
        conclusion(protocol(**fields), runner).budget("steps").verdicts["no-query"]
    )


def test_differences_are_paired_by_seed(protocol, runner, conclusion):
    runner.noise = 0.01
    comparison = conclusion(protocol(), runner)
    control, arm = comparison.budget("steps").arms
    pairs = zip(arm.trainings, control.trainings, strict=True)
    expected = [one.val_loss - other.val_loss for one, other in pairs]
    assert differences(comparison, "no-query") == pytest.approx(expected)
    assert [training.seed for training in arm.trainings] == [0, 1, 2]


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


def test_pairs_share_their_batches(protocol, runner, conclusion):
    conclusion(protocol(), runner)
    seeds = [trial.settings["seed"] for trial in runner.done if trial.seed < 100]
    assert all(seeds.count(seed) >= 2 for seed in (0, 1, 2))


def test_the_control_runs_against_itself_with_other_weights(protocol, runner, conclusion):
    runner.noise = 0.01
    noise = conclusion(protocol(), runner).noise
    again = [trial for trial in runner.done if trial.settings["init_seed"] >= 0]
    assert {trial.arm for trial in again} == {"standard"}
    assert [trial.seed for trial in again] == [0, 1, 2]
    assert len(noise.verdict.differences) == 3
    assert noise.seed_spread > 0


def test_a_jittered_training_shows_what_a_rounding_changes_unless_noise_is_left_out(
    protocol, runner, conclusion
):
    runner.rounding = 1e-3
    assert conclusion(protocol(), runner).noise.rounding == pytest.approx(1e-3)
    assert conclusion(protocol(noise=False), runner).noise is None


def test_equal_seconds_gives_a_slower_arm_fewer_steps(protocol, runner, conclusion):
    comparison = conclusion(protocol("standard", "merged"), runner)
    steps = {arm.arm: arm.trainings[0].steps for arm in comparison.budget("seconds").arms}
    assert steps == {"standard": 8, "merged": 4}


def test_equal_parameters_gives_a_smaller_arm_a_wider_feed_forward_layer(
    protocol, runner, conclusion
):
    control, arm = conclusion(protocol(), runner).budget("params").arms
    assert abs(arm.params - control.params) <= 0.005 * control.params
    assert arm.settings["hidden_dim"] > 64


def test_an_arm_that_cannot_be_as_small_is_refused_with_the_numbers(
    protocol, runner, shared, conclusion
):
    shared["n_heads"], shared["hidden_dim"] = 16, 4
    result = conclusion(protocol("standard", "merged"), runner).budget("params")
    assert "parameters more than the control" in result.refused["merged"]
    assert [arm.arm for arm in result.arms] == ["standard"]


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
    expected = conclusion(protocol(), whole)
    with pytest.raises(KeyboardInterrupt):
        conclusion(protocol(), cut)
    cut.fails_after = float("inf")
    assert conclusion(protocol(), cut) == expected
    assert len(cut.done) == len(whole.done)


@pytest.fixture
def planned(protocol, runner, events_of):
    """The plan that a comparison announces."""

    def plan(**fields) -> Planned:
        events = events_of(protocol(**fields), runner)
        (found,) = [event for event in events if isinstance(event, Planned)]
        return found

    return plan


def test_time_decides_on_the_seeds(planned):
    # 30 tuning trainings of 1 s; a seed is 4: the control, its A/A run, and the arm, which is as
    # fast as the control, with its own and with as many parameters.
    assert planned(seeds=0, minutes=1.0).seeds == int((2 * 60 - 30) / 4)
    with pytest.raises(ConfigError, match=r"at least 3 are needed"):
        planned(seeds=0, minutes=0.2)


def test_the_plan_says_what_difference_it_can_resolve_if_it_tunes(planned, runner):
    runner.noise = 0.02
    few, many = planned(seeds=3).resolves, planned(seeds=8).resolves
    assert 0 < many < few
    assert planned(scales=(1.0,)).resolves is None


def test_a_control_that_diverges_ends_the_comparison(protocol, runner, conclusion):
    runner.diverges = ("standard",)
    with pytest.raises(RunError, match="the control diverged"):
        conclusion(protocol(budgets=("steps",)), runner)


def test_an_impossible_arm_is_refused_before_anything_is_trained(protocol, runner):
    with pytest.raises(ConfigError):
        ComparisonRun(protocol("standard", "odd: standard, n_heads=3"), runner, {})
    assert runner.done == []


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
        ({"seeds": -1}, "at least 1"),
        ({"delta": 0.0}, "delta=0.0"),
        ({"confidence": 1.0}, "confidence=1.0"),
        ({"scales": ()}, "at least one"),
        ({"tuning_seeds": 0}, "tuning_seeds=0"),
        ({"seeds": 10_001}, "seeds=10001 must be at most 10000"),
        ({"minutes": float("inf")}, "minutes=inf must be a finite number"),
        ({"minutes": float("nan")}, "minutes=nan must be a finite number"),
        ({"looks": (1, 5)}, "must be numbers of seeds"),
        ({"looks": (8, 5)}, "must be numbers of seeds"),
        ({"looks": (5, 5)}, "must be numbers of seeds"),
    ],
)
def test_a_protocol_that_cannot_work_is_refused(protocol, fields, complaint):
    with pytest.raises(ConfigError, match=complaint):
        protocol(**fields)


def test_a_comparison_is_bounded_by_steps_alone(protocol, runner, shared):
    shared["epochs"] = 1.0
    with pytest.raises(ConfigError, match="counts steps"):
        ComparisonRun(protocol(), runner, {})


REFERENCE = arm_from("scores-off")


def test_a_difference_is_a_share_of_what_the_part_is_worth(protocol, runner, conclusion):
    runner.effects = {"no-query": 0.03, "scores-off": 0.3}
    found = conclusion(protocol(reference=REFERENCE, budgets=("steps",)), runner)
    (budget,) = found.budgets
    assert found.reference == "scores-off"
    assert budget.verdicts["scores-off"].mean == pytest.approx(0.3)
    assert budget.verdicts["no-query"].share == pytest.approx(0.1)


def test_a_part_worth_less_than_four_margins_makes_a_comparison_insensitive(
    protocol, runner, conclusion
):
    runner.effects = {"no-query": 0.03, "scores-off": 0.035}
    (budget,) = conclusion(protocol(reference=REFERENCE, budgets=("steps",)), runner).budgets
    assert budget.verdicts["no-query"].word == "insensitive"
    assert budget.verdicts["scores-off"].word == "worse"


def test_the_reference_is_trained_with_equal_steps_alone(protocol, runner, conclusion):
    conclusion(protocol(reference=REFERENCE, seeds=2), runner)
    verdict = [t for t in runner.done if t.arm == "scores-off" and t.seed < 2]
    assert len(verdict) == 2


def test_noisy_tuning_widens_the_intervals(runner, verdict_of):
    runner.noise = 0.05
    assert verdict_of(runner, budgets=("steps",)).tuning_error > 0


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
    made = protocol(budgets=("steps",), **margin_from("5%"))
    comparison = conclusion(made, runner)
    assert comparison.delta == pytest.approx(0.1 * log(1 / 0.95), rel=1e-2)
    assert answer_of(comparison, "no-query")[1][0].startswith(
        "no-query is equivalent to standard within 0.00513 nats per token (5 % of the tokens)"
    )
    shorter = {trial.seed for trial in runner.done if trial.settings["steps"] == 800}
    assert shorter == {0, 1, 2}


def test_a_margin_in_nats_trains_nothing_more(protocol, runner, conclusion):
    comparison = conclusion(protocol(delta=0.02), runner)
    assert (comparison.delta, comparison.delta_tokens) == (0.02, 0.0)
    assert len({trial.settings["steps"] for trial in runner.done if trial.arm == "standard"}) == 1


def test_tokens_that_are_worth_nothing_give_no_margin(protocol, runner, conclusion):
    runner.token_worth = -0.1
    with pytest.raises(RunError, match="tokens are worth nothing here, so give --delta in nats"):
        conclusion(protocol(delta_tokens=0.05), runner)


@pytest.mark.parametrize("text", ["0", "-1", "five", "100%", "5%x", "nan"])
def test_a_margin_that_is_none_is_refused(text):
    with pytest.raises(ConfigError, match="must be above 0, in nats per token"):
        margin_from(text)
