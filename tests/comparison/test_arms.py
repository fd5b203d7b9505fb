"""Arms as people write them."""

import pytest

from mlx_attn.comparison.plan import arm_from, arms_from, make_trial, reference_arm
from mlx_attn.errors import ConfigError
from mlx_attn.training.config import resolve


def test_a_variant_alone_is_an_arm():
    arm = arm_from("merged")
    assert (arm.name, arm.settings) == ("merged", {"variant": "merged"})


def test_underscores_name_the_same_variant():
    assert arm_from("no_query").settings == {"variant": "no-query"}


def test_an_arm_may_have_a_name_and_settings():
    arm = arm_from("one head: merged, n_heads=1, weight-decay=0.1, tied_head=yes")
    assert arm.name == "one head"
    assert arm.settings == {
        "variant": "merged",
        "n_heads": 1,
        "weight_decay": 0.1,
        "tied_head": True,
    }


def test_settings_without_a_variant_are_those_of_the_standard_one():
    arm = arm_from("n_heads=1")
    assert (arm.name, arm.settings) == (
        "standard, n_heads=1",
        {"variant": "standard", "n_heads": 1},
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("merge", "did you mean 'merged'"),
        ("merged, n_head=1", "did you mean 'n_heads'"),
        ("merged, n_heads=one", "n_heads='one' must be a whole number"),
        ("merged, tied_head=2", "true or false"),
        ("merged, standard", "must describe one arm"),
        ("", "must describe one arm"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(text, complaint):
    with pytest.raises(ConfigError, match=complaint):
        arm_from(text)


@pytest.mark.parametrize(
    ("texts", "complaint"),
    [
        (["standard"], "at least two arms"),
        (["standard", "standard"], "two arms are called 'standard'"),
        (["standard", "plain: standard"], "'plain' and 'standard' are the same"),
    ],
)
def test_arms_must_differ(texts, complaint):
    with pytest.raises(ConfigError, match=complaint):
        arms_from(texts)


def digest(**settings) -> str:
    return make_trial("arm", resolve({"preset": "shakespeare", **settings}), 0, 1.0, "text").digest


def test_other_settings_are_another_trial():
    assert digest(position="alibi", alibi_slopes="heads") != digest(position="alibi")
    assert digest(window=8) != digest()


@pytest.mark.parametrize(
    ("texts", "name"),
    [
        (["standard", "merged", "no-query"], "scores-off"),
        (["standard", "shared-self-mask"], "scores-off"),
        (["standard", "no-out-proj"], "attention-off"),
        (["standard", "merged", "one head: n_heads=1"], "attention-off"),
    ],
)
def test_the_reference_takes_away_the_part_that_the_arms_change(texts, name):
    reference = reference_arm(arms_from(texts))
    assert reference is not None
    assert (reference.name, reference.settings["variant"]) == (name, name)


@pytest.mark.parametrize(
    "texts", [["standard", "decay: weight_decay=0.1"], ["standard", "scores-off"]]
)
def test_no_reference_where_no_map_differs_or_an_arm_is_one(texts):
    assert reference_arm(arms_from(texts)) is None


def test_the_reference_keeps_what_else_the_control_has():
    reference = reference_arm(arms_from(["one head: n_heads=1", "no-query, n_heads=1"]))
    assert reference is not None
    assert reference.settings["n_heads"] == 1


def test_the_variants_of_a_pattern_belong_to_one_setting():
    arm = arm_from("3 to 1: deltanet, pattern=deltanet,deltanet, standard, n_heads=2")
    assert arm.settings == {
        "variant": "deltanet",
        "pattern": "deltanet,deltanet,standard",
        "n_heads": 2,
    }


def test_the_reference_of_a_pattern_has_one_form_in_all_layers():
    reference = reference_arm(arms_from(["pattern=deltanet,standard", "standard"]))
    assert reference is not None
    assert reference.settings == {"variant": "attention-off"}
