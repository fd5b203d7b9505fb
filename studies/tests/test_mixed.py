"""The model of searches and seeds."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

from studies.mixed import Estimate, between_searches, estimate, paule_mandel, words

SEEDS = [0.01, 0.03, 0.02, 0.05, 0.04]


def test_one_search_is_a_paired_t():
    found = estimate([SEEDS], between=0.5)
    expected: Any = stats.ttest_1samp(SEEDS, 0)
    assert found.p_value == pytest.approx(expected.pvalue)
    assert found.interval() == pytest.approx(tuple(expected.confidence_interval()))
    assert (found.seeds, found.searches) == (5, 1)


def test_two_searches_lie_apart_by_the_given_distance():
    near, far = (estimate([SEEDS, [0.02, 0.04, 0.03]], between=b) for b in (0.0, 0.01))
    assert near.error < far.error
    assert far.degrees == 6


def test_three_equal_searches_add_no_distance_and_no_confidence():
    found = estimate([SEEDS, SEEDS, SEEDS], between=0.5)
    assert found.mean == pytest.approx(0.03)
    assert found.error == pytest.approx(np.std(SEEDS, ddof=1) / np.sqrt(15))
    assert found.degrees == 2


def test_the_distance_of_searches_makes_their_scatter_the_expected_one():
    means, errors = np.array([0.0, 0.02, 0.05]), np.array([0.004, 0.004, 0.004])
    tau = paule_mandel(means, errors)
    assert tau**2 == pytest.approx(means.var(ddof=1) - 0.004**2)
    assert paule_mandel(np.array([0.01, 0.011, 0.012]), errors) == 0.0


def test_one_distance_of_many_contrasts_leaves_out_what_seeds_explain():
    rng = np.random.default_rng(0)
    contrasts = [[rng.normal(rng.normal(0, 0.01), 0.02, 20) for _ in range(4)] for _ in range(200)]
    assert between_searches([[[*g] for g in one] for one in contrasts]) == pytest.approx(
        0.01, rel=0.1
    )


def of(mean: float, error: float) -> Estimate:
    return Estimate(mean=mean, error=error, degrees=20, seeds=21, searches=1)


def test_each_word_has_its_case():
    cases = {"up": of(0.05, 0.01), "down": of(-0.05, 0.01), "zero": of(0.0, 0.001)}
    cases["?"] = of(0.0, 0.05)
    found = words(cases, [name for name, one in cases.items() if one.within(0.01)])
    assert found == {"up": "worse", "down": "better", "zero": "the same", "?": "not known"}


def test_a_word_counts_the_other_arms():
    alone, among = of(0.05, 0.022), {f"arm {place}": of(0.0, 0.05) for place in range(9)}
    assert words({"one": alone}, small=())["one"] == "worse"
    assert words({"one": alone, **among}, small=())["one"] == "not known"


def test_the_interval_of_two_searches_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(400):
        searches = [rng.normal(rng.normal(0, 0.0024), 0.016, seeds) for seeds in (3, 9)]
        low, high = estimate([[*one] for one in searches], between=0.0024).interval()
        covered += low < 0 < high
    assert covered >= 0.93 * 400  # 0.90 with the variance of each search alone
