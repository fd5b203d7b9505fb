"""Verdicts on differences whose answers are known, and the laws that all verdicts keep."""

import json
from dataclasses import asdict, replace
from math import sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from mlx_attn.comparison.decisions import (
    Case,
    Sample,
    Verdict,
    judge_all,
    worst_of_five,
)
from mlx_attn.comparison.t_tests import TTest, benjamini_hochberg, holm, level_of_looks, skewness_of
from mlx_attn.comparison.tuning import tuning_error
from mlx_attn.errors import ConfigError

from .conftest import judge

HAND = (0.010, 0.012, 0.009, 0.011, 0.020)
"""Mean 0.0124; deviations -24, -4, -34, -14, 76 times 1e-4, their squares' sum 77.2e-6."""
SWAPPED = {"better": "worse", "better within the margin": "worse within the margin"}
SWAPPED |= {worse: better for better, worse in SWAPPED.items()}

differences = st.lists(st.integers(-1024, 1024).map(lambda n: n / 1024), min_size=2, max_size=8)
arms = st.dictionaries(st.sampled_from(["merged", "no_query", "key"]), differences, min_size=1)
deltas = st.integers(0, 512).map(lambda n: n / 1024)
laws = settings(max_examples=60)


def alone(found, delta=0.005, **options) -> Verdict:
    return judge({"arm": found}, delta, **options)["arm"]


def test_the_numbers_of_one_arm_are_those_of_a_hand_computation():
    error = sqrt(77.2e-6 / 4 / 5)
    reach = TTest.worst_of_five(5).critical(0.05) * error
    verdict = judge_all({"arm": Case(differences=HAND, margin=0.005)}, test=worst_of_five)["arm"]
    assert verdict.mean == pytest.approx(0.0124)
    assert verdict.interval == pytest.approx((0.0124 - reach, 0.0124 + reach))


def test_the_p_values_are_those_of_the_mean_in_standard_errors():
    error = sqrt(77.2e-6 / 4 / 5)
    test = TTest.worst_of_five(5)
    verdict = judge_all({"arm": Case(differences=HAND, margin=0.015)}, test=worst_of_five)["arm"]
    assert verdict.p_value == test.two_sided(0.0124 / error)
    assert verdict.p_equivalence == test.one_sided((0.015 - 0.0124) / error)


def test_t_is_corrected_for_skewness_by_half_of_hall_s_transformation():
    t = 0.0124 / sqrt(77.2e-6 / 4 / 5)
    a = float(skewness_of(np.array(HAND))) / sqrt(5) / 2
    statistic = t + a * t**2 / 3 + a**2 * t**3 / 27 + a / 6
    assert alone(HAND).p_value == TTest(5).two_sided(statistic)


def test_the_spread_of_tuning_runs_counts_for_two_degrees_of_freedom_a_group():
    """Own variance 19.3e-6 with 4 degrees; three groups of three with variance 4e-6 have 6."""
    groups = ((0.0, 0.002, 0.004),) * 3
    verdict = judge({"arm": HAND}, 0.005, replicates={"arm": groups})["arm"]
    sd = sqrt((4 * 19.3e-6 + 6 * 4e-6) / 10)
    assert verdict.df == 4 + 6
    assert Sample.of(HAND, 0.0, TTest(5, 6), 4e-6).sd == pytest.approx(sd)
    assert verdict.p_value < alone(HAND).p_value


def test_other_arms_lend_their_spread_for_two_degrees_of_freedom():
    beside = judge({"arm": HAND, "other": (0.0, -0.004, 0.004, 0.001, -0.001)}, 0.005)["arm"]
    assert beside.df == 4 + 2
    assert beside.p_value < alone(HAND).p_value


def test_an_arm_without_spread_lends_no_less_than_a_ninth_of_an_arm_s_own_variance():
    beside = judge({"arm": HAND, "twin": (1e-7, 0.0, 0.0, 1e-7, 0.0)}, 0.005)["arm"]
    own = float(np.var(HAND, ddof=1))
    assert beside.p_value == Sample.of(HAND, 0.0, TTest(5, 2), own / 9).p_difference()


DEMOS = [
    (0.139, 0.146, 0.073, 0.066, 0.058),
    (0.078, 0.089, 0.054, 0.183, 0.101),
    (0.120, 0.205, 0.077, 0.108, 0.094),
]
"""Differences of the demo's forms with the seeds 0 to 4, 5 to 9 and 10 to 14."""


@pytest.mark.parametrize("measured", DEMOS)
def test_five_seeds_of_a_shared_query_and_key_are_worse(measured):
    assert alone(measured, 0.02).word == "worse"


def test_tuning_noise_widens_the_interval():
    error = sqrt(77.2e-6 / 4 / 5 + 0.003**2)
    verdict = judge({"arm": HAND}, 0.005, tuning={"arm": 0.003})["arm"]
    reach = TTest(5).in_errors(
        -TTest(5).critical(0.05),
        Sample.of(HAND, 0.0, None).skewness * (77.2e-6 / 20 / error**2) ** 1.5,
    )
    assert (verdict.interval or (0, 0))[1] == pytest.approx(0.0124 - reach * error)
    assert verdict.tuning_error == 0.003


def test_holm_by_hand():
    """0.01 x 4; 0.02 x 3; 0.03 x 2 but not below the one before; 0.9 x 1; at most 1."""
    adjusted = holm({"a": 0.02, "b": 0.9, "c": 0.01, "d": 0.03})
    assert adjusted == pytest.approx({"a": 0.06, "b": 0.9, "c": 0.04, "d": 0.06})
    assert holm({"a": 0.6, "b": 0.7}) == {"a": 1.0, "b": 1.0}


def test_false_discovery_rates_by_hand():
    """0.03 x 4 / 3, and so for 0.02 x 4 / 2 and 0.01 x 4 / 1, which are not below it; 0.9 x 1."""
    rates = benjamini_hochberg({"a": 0.02, "b": 0.9, "c": 0.01, "d": 0.03})
    assert rates == pytest.approx({"a": 0.04, "b": 0.9, "c": 0.04, "d": 0.04})


@laws
@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_false_discovery_rates_are_those_of_scipy(p_values):
    rates = benjamini_hochberg({str(place): p for place, p in enumerate(p_values)})
    assert [*rates.values()] == pytest.approx(stats.false_discovery_control(p_values))


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
    assert alone([mean + spread * offset for offset in (-1, -0.5, 0, 0, 0.5, 1)]).word == word


def test_a_difference_is_a_share_of_what_the_part_is_worth_if_that_is_four_margins():
    little, much = (judge({"arm": HAND}, 0.005, worth=w)["arm"] for w in (3.9 * 0.005, 0.124))
    assert (little.word, little.share) == ("insensitive", None)
    assert much.share == pytest.approx(0.1)


def test_a_part_that_a_rounding_could_make_worth_less_is_insensitive():
    found, worth = {"arm": [0.001, 0.002, 0.0, -0.001, 0.001]}, 4.1 * 0.01
    assert judge(found, 0.01, worth=worth)["arm"].word == "equivalent"
    assert judge(found, 0.01, worth=worth, rounding=0.002)["arm"].word == "insensitive"


def test_several_looks_ask_for_a_smaller_p_value():
    found = [0.010, 0.012, 0.003, 0.011, 0.018]
    assert level_of_looks(0.05, (5, 8)) < alone(found).p_value <= 0.05
    assert judge({"arm": found}, 0.005, looks=(5, 8))["arm"].word == "undecided"
    assert alone(found).word == "worse"


def test_a_noisy_choice_on_a_sharp_curve_of_learning_rates_adds_an_error():
    noisy = {0.5: (1.02, 1.10), 1.0: (1.06, 1.00), 2.0: (1.12, 1.03)}
    assert 0.001 < tuning_error(noisy) < 0.05


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


def test_factors_with_which_trainings_nearly_diverge_add_nothing_to_a_choice_that_is_clear():
    near = {0.25: (1.02, 1.03), 0.5: (1.0, 1.01), 1.0: (1.02, 1.03)}
    assert tuning_error(near) == tuning_error(near | {2.0: (1.4, 1.1), 4.0: (9.0, 1.7)})


def test_more_arms_make_the_same_difference_less_certain():
    """Arms of the same spread, so that its variance is known better, and Holm's factor is three."""
    beside = {"b": (0.0, -0.004, 0.004, 0.001, -0.001), "c": (0.0, 0.004, -0.004, 0.001, -0.001)}
    several = judge({"arm": HAND, **beside}, 0.005)["arm"]
    assert several.p_holm == pytest.approx(3 * several.p_value)
    assert several.p_value < alone(HAND).p_value


def test_one_seed_decides_nothing(verdict_of_one_seed):
    assert alone([0.3]) == verdict_of_one_seed(0.3)
    assert alone([0.3]).below_margin is None


@pytest.mark.parametrize(
    ("found", "delta", "word"),
    [
        ((0.0, 0.0, 0.0), 0.005, "equivalent"),
        ((0.0, 0.0, 0.0), 0.0, "undecided"),
        ((0.1, 0.1, 0.1), 0.005, "worse"),
        ((-0.1, -0.1), 0.005, "better"),
    ],
)
def test_differences_without_any_spread_are_taken_as_they_are(found, delta, word):
    verdict = alone(found, delta)
    assert verdict.word == word
    assert verdict.interval == (found[0], found[0])


@pytest.mark.parametrize(
    ("found", "delta", "confidence", "message"),
    [
        ([], 0.005, 0.95, "arm must be one finite number or more"),
        ([0.1, float("nan")], 0.005, 0.95, "leave out what diverged"),
        ([0.1], -0.1, 0.95, r"not negative: got -0\.1"),
        ([0.1], 0.1, 95.0, "such as 0.95: got 95"),
    ],
)
def test_what_cannot_be_judged_is_refused(found, delta, confidence, message):
    with pytest.raises(ConfigError, match=message):
        alone(found, delta, confidence=confidence)


@laws
@given(arms, deltas)
def test_every_number_fits_into_json(found, delta):
    verdicts = judge({**found, "single": [0.25]}, delta)
    for verdict in verdicts.values():
        record = json.loads(json.dumps(asdict(verdict), allow_nan=False))
        assert record["word"] == verdict.word


@laws
@given(arms, deltas, st.floats(0.0, 1.0))
def test_a_rounding_floor_makes_no_word_surer_and_moves_no_mean(found, delta, rounding):
    plain, floored = judge(found, delta), judge(found, delta, rounding=rounding)
    for arm, verdict in plain.items():
        assert floored[arm].p_value >= verdict.p_value
        assert floored[arm].p_equivalence >= verdict.p_equivalence
        assert (floored[arm].mean, floored[arm].interval) == (verdict.mean, verdict.interval)


@laws
@given(arms, deltas)
def test_swapping_the_arms_swaps_better_and_worse_and_mirrors_the_intervals(found, delta):
    there = judge(found, delta)
    back = judge({arm: [-d for d in pairs] for arm, pairs in found.items()}, delta)
    for arm, verdict in there.items():
        assert back[arm].word == SWAPPED.get(verdict.word, verdict.word)
        assert back[arm].interval == pytest.approx(mirrored(verdict.interval))


def mirrored(interval):
    return -interval[1], -interval[0]


@laws
@given(differences, st.randoms(use_true_random=False))
def test_the_order_of_the_seeds_does_not_matter(found, random):
    shuffled = random.sample(found, len(found))
    assert replace(alone(shuffled), differences=()) == replace(alone(found), differences=())


@laws
@given(differences, st.integers(-1024, 1024).map(lambda n: n / 1024))
def test_a_shift_of_all_differences_shifts_the_intervals(found, shift):
    shifted = alone([d + shift for d in found])
    ends = np.array(alone(found).interval) + shift
    assert shifted.interval == pytest.approx(tuple(ends), abs=1e-12)
    assert shifted.resolves == pytest.approx(alone(found).resolves)


@laws
@given(arms, deltas, st.sampled_from([0.125, 4.0, 1024.0]))
def test_other_units_keep_the_word(found, delta, factor):
    scaled = {arm: [factor * d for d in pairs] for arm, pairs in found.items()}
    words = {arm: verdict.word for arm, verdict in judge(found, delta).items()}
    assert {a: v.word for a, v in judge(scaled, factor * delta).items()} == words


@laws
@given(differences)
def test_an_interval_without_0_and_a_small_p_value_are_the_same_thing(found):
    verdict = alone(found)
    low, high = verdict.interval or (0, 0)
    assert (low > 0 or high < 0) == (verdict.p_value < 0.05)


@laws
@given(arms, deltas)
def test_seeds_are_missing_exactly_where_nothing_is_decided(found, delta):
    for verdict in judge(found, delta).values():
        seeds = verdict.seeds_needed
        assert (seeds is not None) == (verdict.word == "undecided")
        assert seeds is None or seeds > len(verdict.differences)


@pytest.mark.parametrize(
    "differences", [[0.01, 0.02, 0.03], [0.010, 0.012, 0.017, 0.009]], ids=["a half", "above"]
)
def test_the_probability_below_the_margin_is_that_of_student_s_t_around_the_mean(differences):
    around: Any = stats.ttest_1samp(differences, 0.02, alternative="less")
    assert alone(differences, 0.02).below_margin == pytest.approx(1 - around.pvalue)
