"""The tests that studies registered, by hand computations."""

from math import sqrt

import numpy as np
import pytest
from scipy import stats

from studies.decisions import Case, Sample, judge_all, worst_of_five
from studies.findings import TESTS
from studies.t_tests import TTest, benjamini_hochberg, holm, skewness_of
from studies.tuning import tuning_error

HAND = (0.010, 0.012, 0.009, 0.011, 0.020)
"""Mean 0.0124; deviations -24, -4, -34, -14, 76 times 1e-4, their squares' sum 77.2e-6."""


def judged(found, margin=0.005, **more):
    return judge_all({"arm": Case(differences=tuple(found), margin=margin, **more)})["arm"]


def test_the_numbers_of_one_arm_are_those_of_a_hand_computation():
    error, test = sqrt(77.2e-6 / 4 / 5), TTest.worst_of_five(5)
    reach = test.critical(0.05) * error
    verdict = judge_all({"arm": Case(differences=HAND, margin=0.015)}, test=worst_of_five)["arm"]
    assert verdict.mean == pytest.approx(0.0124)
    assert verdict.interval == pytest.approx((0.0124 - reach, 0.0124 + reach))
    assert verdict.p_value == test.two_sided(0.0124 / error)
    assert verdict.p_equivalence == test.one_sided((0.015 - 0.0124) / error)


def test_t_is_corrected_for_skewness_by_half_of_hall_s_transformation():
    t = 0.0124 / sqrt(77.2e-6 / 4 / 5)
    a = float(skewness_of(np.array(HAND))) / sqrt(5) / 2
    statistic = t + a * t**2 / 3 + a**2 * t**3 / 27 + a / 6
    assert judged(HAND).p_value == TTest(5).two_sided(statistic)


def test_the_spread_of_tuning_runs_counts_for_two_degrees_of_freedom_a_group():
    """Own variance 19.3e-6 with 4 degrees; three groups of three with variance 4e-6 have 6."""
    verdict = judged(HAND, replicates=((0.0, 0.002, 0.004),) * 3)
    assert verdict.df == 4 + 6
    assert Sample.of(HAND, 0.0, TTest(5, 6), 4e-6).sd == pytest.approx(
        sqrt((4 * 19.3e-6 + 6 * 4e-6) / 10)
    )
    assert verdict.p_value < judged(HAND).p_value


def test_other_arms_of_a_world_lend_their_spread_for_two_degrees_of_freedom():
    cases = {"arm": HAND, "other": (0.0, -0.004, 0.004, 0.001, -0.001)}
    both = {name: Case(differences=d, margin=0.005, world="a") for name, d in cases.items()}
    assert judge_all(both)["arm"].df == 4 + 2


@pytest.mark.parametrize(
    ("mean", "spread", "word"),
    [
        (0.10, 0.001, "worse"),
        (-0.10, 0.001, "better"),
        (0.0, 0.001, "equivalent"),
        (0.003, 0.0005, "worse within the margin"),
        (-0.003, 0.0005, "better within the margin"),
        (0.02, 0.05, "undecided"),
    ],
)
def test_the_words(mean, spread, word):
    assert judged([mean + spread * offset for offset in (-1, -0.5, 0, 0, 0.5, 1)]).word == word


def test_a_study_is_judged_by_the_test_that_it_registered_and_shows_the_other_word():
    """Skewed to the side of 0, where the correction finds more than the plain t."""
    found = Case(differences=(0.010, 0.012, 0.003, 0.011, 0.018), margin=0.0)
    verdicts = {name: judge_all({"arm": found}, test=test)["arm"] for name, test in TESTS.items()}
    assert {t: (v.word, v.other_word) for t, v in verdicts.items()} == {
        "worst-of-five": ("undecided", "worse"),
        "shrunk-t": ("worse", "worse"),
        "moderated-t": ("worse", "undecided"),
    }


def test_holm_by_hand():
    """0.01 x 4; 0.02 x 3; 0.03 x 2 but not below the one before; 0.9 x 1; at most 1."""
    adjusted = holm({"a": 0.02, "b": 0.9, "c": 0.01, "d": 0.03})
    assert adjusted == pytest.approx({"a": 0.06, "b": 0.9, "c": 0.04, "d": 0.06})


def test_false_discovery_rates_are_those_of_scipy():
    p_values = [0.02, 0.9, 0.01, 0.03, 0.5]
    rates = benjamini_hochberg({str(place): p for place, p in enumerate(p_values)})
    assert [*rates.values()] == pytest.approx(stats.false_discovery_control(p_values))


@pytest.mark.parametrize(
    ("losses", "error"),
    [
        ([(1.0, 1.01), (1.0, 1.01), (1.0, 1.01)], 0.0),
        # Of four draws of two seeds one, the second twice, chooses a factor that costs 0.04.
        ([(1.0, 1.0), (0.9, 1.02), (1.0, 1.0)], 0.04 * sqrt(2 / 4)),
        # The parabola through 1.02, 1 and 1.06 has its vertex 0.04^2 / (8 * 0.08) below 1.
        ([(1.02, 1.02), (1.0, 1.0), (1.06, 1.06)], 0.0025),
    ],
    ids=["a flat curve", "a choice by hand", "a grid by hand"],
)
def test_the_error_of_a_choice_of_learning_rates(losses, error):
    of_factors = dict(zip((0.5, 1.0, 2.0), losses, strict=True))
    assert tuning_error(of_factors) == pytest.approx(error, abs=1e-12)
