"""The follow-up studies: complete, and consistent with the first."""

import pytest

from mlx_attn.errors import ConfigError
from studies import tables
from studies.follow_ups import follow_up
from studies.study import the_study

STUDY = the_study()


def test_a_study_asked_besides_shares_the_trainings_that_are_the_same():
    besides = follow_up("widths")
    one = {"arm": "no-query", "seed": 100, "scale": 1.0}
    first = STUDY.trial(world="shakespeare", **one).key
    keys = [besides.trial(world=world, **one).key for world in besides.worlds]
    assert [key == first for key in keys] == [False, True, False]  # widths 32, 64, 128


def test_delta_rules_are_compared_at_equal_parameters():
    study = follow_up("delta-rules")
    for _, contrast, world in study.asked():
        costs = tables.costs_of("delta-rules")[world]
        parameters = costs["standard"].parameters
        assert costs[contrast.arm].parameters == pytest.approx(parameters, rel=0.0005)


def test_a_question_like_anothers_asks_its_contrasts_with_its_arms():
    earlier, longer = follow_up("alternatives"), follow_up("alternatives-longer")
    asked = {contrast.arm for _, contrast, _ in longer.asked()}
    assert asked == {contrast.arm for _, contrast, _ in earlier.asked()} | {"mla-learned"}
    assert all(longer.arms[arm] == earlier.arms[arm] for arm in asked - {"mla-learned"})


def test_a_study_that_there_is_not_is_refused():
    with pytest.raises(ConfigError, match="did you mean 'widths'"):
        follow_up("width")
