"""Verdicts on differences whose answers are known, and the laws that all verdicts keep."""

import json
from dataclasses import asdict, replace
from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from mlx_attn.compare.statistics import Verdict, holm, judge
from mlx_attn.errors import ConfigError

HAND = (0.010, 0.012, 0.009, 0.011, 0.020)
"""Mean 0.0124; deviations -24, -4, -34, -14, 76 times 1e-4, their squares' sum 77.2e-6."""
SWAPPED = {"better": "worse", "worse": "better"}

differences = st.lists(st.integers(-1024, 1024).map(lambda n: n / 1024), min_size=2, max_size=8)
arms = st.dictionaries(st.sampled_from(["merged", "no_query", "key"]), differences, min_size=1)
deltas = st.integers(0, 512).map(lambda n: n / 1024)
laws = settings(deadline=None, max_examples=60)


def alone(found, delta=0.005, **options) -> Verdict:
    return judge({"arm": found}, delta, **options)["arm"]


def test_the_numbers_of_one_arm_are_those_of_a_hand_computation():
    error = sqrt(77.2e-6 / 4 / 5)
    reach = 2.776445105 * error  # the table's t for 4 degrees of freedom and 95 %
    verdict = alone(HAND)
    assert verdict.mean == pytest.approx(0.0124)
    assert verdict.interval == pytest.approx((0.0124 - reach, 0.0124 + reach))


def test_the_p_value_is_scipy_s():
    assert alone(HAND).p_value == pytest.approx(stats.ttest_1samp(HAND, 0)[1])


def test_the_p_value_of_equivalence_is_the_larger_of_scipy_s_two_one_sided_tests():
    above = stats.ttest_1samp(HAND, -0.015, alternative="greater")[1]
    below = stats.ttest_1samp(HAND, 0.015, alternative="less")[1]
    assert alone(HAND, delta=0.015).p_equivalence == pytest.approx(np.max([above, below]))


def test_holm_by_hand():
    """0.01 x 4; 0.02 x 3; 0.03 x 2 but not below the one before; 0.9 x 1."""
    adjusted = holm({"a": 0.02, "b": 0.9, "c": 0.01, "d": 0.03})
    assert adjusted == pytest.approx({"a": 0.06, "b": 0.9, "c": 0.04, "d": 0.06})


def test_an_adjusted_p_value_is_at_most_1():
    assert holm({"a": 0.6, "b": 0.7}) == {"a": 1.0, "b": 1.0}


@pytest.mark.parametrize(
    ("found", "word"),
    [
        ((0.10, 0.11, 0.09, 0.10), "worse"),
        ((-0.10, -0.11, -0.09, -0.10), "better"),
        ((0.001, -0.001, 0.0005, -0.0005), "equivalent"),
        ((0.02, -0.03, 0.01, 0.04), "undecided"),
    ],
)
def test_the_four_words(found, word):
    assert alone(found).word == word


def test_a_difference_within_delta_is_equivalent_even_if_it_is_surely_not_zero():
    verdict = alone((0.0020, 0.0021, 0.0019, 0.0020))
    assert verdict.p_holm < 0.001
    assert verdict.word == "equivalent"


def test_more_arms_make_the_same_difference_less_certain():
    several = judge({"arm": HAND, "b": (0.1, -0.2, 0.1), "c": (0.2, -0.3, 0.2)}, 0.005)["arm"]
    assert several.p_holm == pytest.approx(3 * alone(HAND).p_holm)


def test_one_seed_decides_nothing(verdict_of_one_seed):
    assert alone([0.3]) == verdict_of_one_seed(0.3)


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
    assert verdict.interval == verdict.bootstrap == (found[0], found[0])


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
@given(arms, deltas)
def test_swapping_the_arms_swaps_better_and_worse_and_mirrors_the_intervals(found, delta):
    there = judge(found, delta)
    back = judge({arm: [-d for d in pairs] for arm, pairs in found.items()}, delta)
    for arm, verdict in there.items():
        assert back[arm].word == SWAPPED.get(verdict.word, verdict.word)
        assert back[arm].interval == pytest.approx(mirrored(verdict.interval))
        assert back[arm].bootstrap == pytest.approx(mirrored(verdict.bootstrap))


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
    for name in ("interval", "bootstrap"):
        ends = np.array(getattr(alone(found), name)) + shift
        assert getattr(shifted, name) == pytest.approx(tuple(ends), abs=1e-12)
    assert shifted.resolves == pytest.approx(alone(found).resolves)


@laws
@given(arms, deltas, st.sampled_from([0.125, 4.0, 1024.0]))
def test_other_units_keep_the_word(found, delta, factor):
    scaled = {arm: [factor * d for d in pairs] for arm, pairs in found.items()}
    words = {arm: verdict.word for arm, verdict in judge(found, delta).items()}
    assert {a: v.word for a, v in judge(scaled, factor * delta).items()} == words


@laws
@given(differences)
def test_a_t_interval_without_0_and_a_small_p_value_are_the_same_thing(found):
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
