"""The tables of the page say what the records say."""

from math import log

import numpy as np
import pytest

from studies import show
from studies.schedule import searches


def test_a_margin_in_tokens_is_what_a_training_of_so_many_fewer_tokens_loses(study, trained):
    records = trained(study, noise=0.0)
    # A fifth of the steps is worth 0.05 nats, the margin is 0.03: 1 - 0.8 ** (0.03 / 0.05).
    assert show.margin_in_tokens(study, records, "near") == "13%"


def test_a_margin_has_no_equivalent_before_tokens_are_known_to_be_worth_anything(study, trained):
    assert show.margin_in_tokens(study, {}, "near") == ""
    records = trained(study, effects={"shorter": -0.05 - log(2)}, noise=0.0)
    assert show.margin_in_tokens(study, records, "near") == ""


def test_only_searches_that_are_settled_are_counted(study, trained):
    assert searches(study, {}) == {}
    found = searches(study, trained(study))
    assert {*found} == {"standard", "scores-off", "attention-off", "no-query", "no-key"}
    assert {*found["attention-off"]} == {"far"}
    assert all(one.interior for of_arm in found.values() for one in of_arm.values())


def test_the_curve_of_a_search_is_drawn_above_its_lowest_and_its_choice_is_ringed(study, trained):
    records = trained(study, noise=0.0)
    axis = show.rates_figure(searches(study, records)).axes[0]
    curve, ring = axis.get_lines()[:2]
    assert curve.get_ydata() == pytest.approx([0.1, 0.0, 0.1])
    assert np.asarray(ring.get_xydata()).tolist() == [[1.0, 0.0]]
