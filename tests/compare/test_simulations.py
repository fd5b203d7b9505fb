"""Verdicts keep their promises: drawn many times, they err as seldom as they say.

A rate of 1000 draws is known to two standard errors, sqrt(p (1 - p) / 1000) each: 5 % may come out
as 6.4 %, 80 % as 77.5 %.
"""

from math import sqrt

import numpy as np
import pytest

from mlx_attn.compare.statistics import (
    Sample,
    bootstrap_interval,
    decide,
    minimum_detectable_effect,
    student_interval,
)

DRAWS = 1000
ARMS = ("merged", "no_query", "key")


def margin(rate):
    return 2 * sqrt(rate * (1 - rate) / DRAWS)


def coverage(interval, samples, true_mean):
    intervals = np.array([interval(drawn) for drawn in samples])
    return np.mean((intervals[:, 0] <= true_mean) & (true_mean <= intervals[:, 1]))


def student(drawn):
    return student_interval(Sample.of(drawn.tolist()), 0.95)


def bootstrap(drawn):
    return bootstrap_interval(drawn.tolist(), 0.95)


@pytest.mark.parametrize("interval", [student, bootstrap])
@pytest.mark.parametrize("n", [5, 8])
def test_intervals_hold_the_true_mean_of_normal_differences_95_times_in_100(n, interval):
    drawn = np.random.default_rng(n).normal(0.3, 1.0, (DRAWS, n))
    assert 0.93 <= coverage(interval, drawn, 0.3) <= 0.97


@pytest.mark.parametrize("n", [2, 3])
def test_the_bootstrap_interval_is_not_too_short_for_two_or_three_seeds(n):
    drawn = np.random.default_rng(n).standard_normal((DRAWS, n))
    assert coverage(bootstrap, drawn, 0.0) >= 0.93


@pytest.mark.parametrize("n", [5, 8])
def test_of_skewed_differences_the_bootstrap_interval_holds_the_mean_more_often(n):
    drawn = np.random.default_rng(n).exponential(size=(DRAWS, n))
    assert coverage(student, drawn, 1.0) + 0.01 < coverage(bootstrap, drawn, 1.0) <= 0.97


def words(seed, n, means, sd=1.0, delta=0.0, shared=0.0):
    """The words on three arms, draw by draw; a share of the variance is that of a common control.

    Returns an array [draws, arms].
    """
    random = np.random.default_rng(seed)
    own, control = random.standard_normal((DRAWS, 3, n)), random.standard_normal((DRAWS, 1, n))
    drawn = sd * (sqrt(1 - shared) * own + sqrt(shared) * control)
    drawn = drawn + np.reshape(means, (1, 3, 1))
    summaries = zip(drawn.mean(2).tolist(), drawn.std(2, ddof=1).tolist(), strict=True)
    return np.array([_words_of(n, *summary, delta) for summary in summaries])


def _words_of(n, means, deviations, delta):
    summaries = zip(ARMS, means, deviations, strict=True)
    samples = {arm: Sample(n, mean, sd) for arm, mean, sd in summaries}
    return [decision["word"] for decision in decide(samples, delta, 0.95).values()]


@pytest.mark.parametrize(("n", "shared"), [(5, 0.5), (8, 0.0)])
def test_of_three_equal_arms_hardly_ever_one_is_called_better_or_worse(n, shared):
    said = words(n, n, means=(0, 0, 0), shared=shared)
    wrong = np.isin(said, ["better", "worse"]).any(1).mean()
    assert wrong <= 0.05 + margin(0.05)


@pytest.mark.parametrize(("means", "sd"), [((1, -1, 1), 0.2), ((1.2, 1, 3), 1.0)])
def test_arms_that_differ_by_delta_or_more_are_hardly_ever_called_equivalent(means, sd):
    said = words(1, 5, means, sd, delta=1.0)
    assert (said == "equivalent").any(1).mean() <= 0.05 + margin(0.05)


@pytest.mark.parametrize("n", [5, 8])
def test_a_difference_that_can_be_resolved_is_found_four_times_in_five(n):
    planted = minimum_detectable_effect(1.0, n, arms=3)
    said = words(n, n, means=(planted, 0, 0))
    assert (said[:, 0] == "worse").mean() >= 0.8 - margin(0.8)
