"""Whole comparisons, with trainings by formula: trainings, resuming, conclusions."""

from math import log

import pytest

from mlx_attn.comparison.config import ComparisonConfig, Margin, arm_from
from mlx_attn.comparison.run import ComparisonRun
from mlx_attn.comparison.show import answer_of
from mlx_attn.comparison.tables import differences_of
from mlx_attn.comparison.trial import Store
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.text.characters import ByteTokenizer, CharacterTokenizer
from tests.comparison.conftest import FormulaRunner, conclude


def test_differences_are_paired_by_seed(protocol, runner):
    runner.noise = 0.01
    comparison = conclude(protocol(), runner)
    control, arm = comparison.arms
    pairs = zip(arm.trainings, control.trainings, strict=True)
    expected = [one.val_loss - other.val_loss for one, other in pairs]
    assert comparison.verdicts["no-query"].differences == pytest.approx(expected)
    assert [training.seed for training in arm.trainings] == [0, 1, 2]


def test_a_seed_or_arm_more_costs_its_own_trainings_and_another_text_all(protocol, runner, story):
    conclude(protocol("standard", "no-query"), runner)
    first = len(runner.done)
    conclude(protocol("standard", "no-query", seeds=4), runner)
    assert {trial.seed for trial in runner.done[first:]} == {3}
    second = len(runner.done)
    conclude(protocol("standard", "no-query", "no-value"), runner)
    assert {trial.arm for trial in runner.done[second:]} == {"no-value"}
    third = len(runner.done)
    story.write_text(story.read_text() + "the end. " * 30)
    conclude(protocol("standard", "no-query"), runner)
    assert len(runner.done) == third + first


def test_another_tokenizer_in_a_folder_is_another_text(protocol, runner, shared, story):
    shared["tokenizer"], texts = str(story.parent), set[str]()
    for tokenizer in (ByteTokenizer(), CharacterTokenizer.train(story.read_text())):
        tokenizer.save(story.parent)
        texts.add(ComparisonRun(protocol(), runner).config.text)
    assert len(texts) == 2


@pytest.mark.parametrize("finished", [1, 8])
def test_an_interrupted_comparison_ends_like_an_uninterrupted_one(protocol, tmp_path, finished):
    whole, cut = (FormulaRunner(Store(tmp_path / name), noise=0.01) for name in ("whole", "cut"))
    cut.fails_after = finished
    with pytest.raises(KeyboardInterrupt):
        conclude(protocol(), cut)
    cut.fails_after = float("inf")
    assert conclude(protocol(), cut) == conclude(protocol(), whole)
    assert len(cut.done) == len(whole.done)


def test_a_control_that_diverges_ends_the_comparison(protocol, runner):
    runner.diverges = ("standard",)
    with pytest.raises(RunError, match="nothing to compare with, because of standard: with seed"):
        conclude(protocol(), runner)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"seeds": 0}, "seeds=0 must be at least 1"),
        ({"seeds": 10_001}, "seeds=10001 must be at most 10000"),
        *(
            ({"delta": text}, f"delta '{text}' must be above 0, in nats per token")
            for text in ("-0.01", "0", "five", "100%", "5%x", "nan")
        ),
        ({"confidence": 1.0}, "confidence=1.0"),
        *(({"scales": scales}, "positive .* each once") for scales in ((), (0.5, 0.5), (0.0,))),
        ({"tuning_seeds": 0}, "tuning_seeds=0"),
        ({"reference": arm_from("no-query: no-value")}, "the reference no-query is an arm too"),
        ({"reference": arm_from("off: no-query")}, "the reference off is an arm too"),
    ],
)
def test_a_comparison_that_cannot_work_is_refused(protocol, fields, complaint):
    with pytest.raises(ConfigError, match=complaint):
        protocol(**fields)


@pytest.mark.parametrize(
    ("arms", "changes", "complaint"),
    [
        (["standard", "odd: standard, n_heads=3"], {}, "n_heads"),
        (["standard", "odd: standard, context_length=9"], {"data": "recall"}, "documents take 33"),
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


def test_only_settings_that_no_arm_changes_are_told_as_shared_and_the_rest_of_all_arms(
    protocol, runner
):
    runner.diverges = ("wild",)
    made = conclude(protocol("standard", "no-query, batch_size=3", "wild: lr=9"), runner)
    assert not {"score", "batch_size", "lr", "seed", "eval_every"} & made.settings.keys()
    assert (made.settings["n_layers"], made.settings["tokenizer"]) == (1, "char")
    assert [made.settings_by_arm[arm]["lr"] for arm in ("standard", "wild")] == [0.01, 9]
    assert [arm["batch_size"] for arm in made.settings_by_arm.values()][:2] == [4, 3]


def test_the_reference_says_what_the_part_is_worth_and_caps_the_margin(protocol, runner):
    runner.noise, runner.effects = 2e-7, {"no-query": 0.03, "scores-off": 0.05}
    config = protocol(delta=0.04, reference=arm_from("scores-off"))
    verdicts = conclude(config, runner).verdicts
    worth = verdicts["scores-off"].interval
    assert worth == pytest.approx((0.05, 0.05), rel=1e-4)
    assert worth
    assert {arm: verdict.margin for arm, verdict in verdicts.items()} == pytest.approx(
        {"no-query": worth[0] / 2, "scores-off": 0.04}
    )
    assert verdicts["no-query"].word == "worse"
    assert verdicts["no-query"].share == pytest.approx(0.6, rel=1e-5)
    without = conclude(protocol(delta=0.04), runner).verdicts["no-query"]
    assert (without.word, without.share) == ("the same", None)


def test_a_task_is_judged_by_how_often_it_is_solved_and_not_by_the_mean_loss(protocol, runner):
    runner.noise, runner.effects = 0.002, {"no-query": -0.2}
    runner.shares = {"standard": 1.0, "no-query": 0.4}
    comparison = conclude(protocol(seeds=5), runner)
    assert comparison.verdicts["no-query"].word == differences_of(comparison).rows[0][3] == "better"
    word, sentence = answer_of(comparison, "no-query")
    assert word == comparison.solving["no-query"].word == "worse"
    assert "no-query solves the task less often than standard: 0 of 5 seeds against 5" in sentence


@pytest.mark.parametrize(
    ("shares", "effect", "solving", "word"),
    [
        ({"standard": 1.0, "no-query": 1.0}, 0.0, "not known", "the same"),
        ({"standard": 0.6, "no-query": 0.5}, 0.2, None, "worse"),
        ({}, 0.0, None, "the same"),
    ],
    ids=["solved alike", "solved by none", "a text"],
)
def test_where_solving_decides_nothing_the_mean_loss_does(
    protocol, runner, shares, effect, solving, word
):
    runner.noise, runner.shares, runner.effects = 0.001, shares, {"no-query": effect}
    comparison = conclude(protocol(seeds=5), runner)
    found = {name: one.word for name, one in comparison.solving.items()}
    assert found.get("no-query") == solving
    assert comparison.word("no-query") == word


def test_a_margin_in_tokens_is_what_they_are_worth_to_the_control(protocol, runner, shared):
    runner.token_worth, runner.noise, shared["steps"] = 0.1, 1e-5, 1000
    comparison = conclude(protocol(delta="5%"), runner)
    assert comparison.delta == pytest.approx(0.1 * log(1 / 0.95), rel=1e-2)
    assert answer_of(comparison, "no-query")[1].startswith(
        "no-query is the same as standard within 0.00513 nats per token (5 % of the tokens)"
    )
    shorter = [trial for trial in runner.done if trial.settings.training.steps == 800]
    assert {trial.settings.training.log_every for trial in shorter} == {100}
    # No name is shown with two losses.
    assert {(trial.arm, trial.seed) for trial in shorter} == {
        ("standard: 800 steps", seed) for seed in range(3)
    }
    alike = "standard, 800 steps"
    named = conclude(protocol("standard", f"{alike}: no-query", delta="5%"), runner)
    assert named.verdicts[alike] == comparison.verdicts["no-query"]
    runner.done.clear()
    assert conclude(protocol(delta=0.02), runner).delta == 0.02
    assert not [trial for trial in runner.done if trial.settings.training.steps == 800]


def test_the_margin_is_five_percent_of_the_tokens_unless_another_is_named():
    arms = ("standard", "no-query")
    plans = (ComparisonConfig.of({"arms": arms, **more}) for more in ({}, {"delta": 0.01}))
    assert [plan.margin for plan in plans] == [Margin(tokens=0.05), Margin(nats=0.01)]


def test_if_tokens_are_worth_nothing_every_difference_counts(protocol, runner):
    runner.token_worth, runner.noise = -0.1, 0.01
    comparison = conclude(protocol(delta="5%"), runner)
    assert comparison.delta == 0.0
    assert comparison.verdicts["no-query"].word == "not known"
