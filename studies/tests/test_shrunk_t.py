"""The prior of a world's variances, as Smyth estimates it: the study `horizon` registered it."""

from math import inf, sqrt

import numpy as np
import pytest

from studies.decisions import Case, judge_all
from studies.shrunk_t import Prior, StudentT, Variance, prior_of, shrunk_t

HAND = (0.010, 0.012, 0.009, 0.011, 0.020)
OTHER = (0.020, 0.022, 0.019, 0.021, 0.030)


def test_equal_variances_share_all_their_degrees_of_freedom():
    """Two arms of five seeds: 8 degrees, and a t of Student's law with them."""
    cases = {name: Case(differences=of, margin=0.0, world="w") for name, of in _pair().items()}
    verdict = judge_all(cases, test=shrunk_t)["arm"]
    assert verdict.df == 8
    shared = prior_of([Variance(cases["arm"].variance, 4.0)] * 2).value
    half = 2.306 * sqrt(shared / 5)
    assert verdict.interval == pytest.approx((0.0124 - half, 0.0124 + half), abs=1e-6)


def test_arms_of_other_worlds_share_nothing():
    cases = {name: Case(differences=of, margin=0.0, world=name) for name, of in _pair().items()}
    assert judge_all(cases, test=shrunk_t)["arm"].df == 4


def test_variances_that_differ_much_share_little():
    random = np.random.default_rng(0)
    alike = [Variance(v, 20.0) for v in random.chisquare(20, 400) / 20]
    apart = [Variance(v, 20.0) for v in random.chisquare(2, 400) / 2 * random.chisquare(20, 400)]
    assert prior_of(alike).df > 100
    assert prior_of(apart).df < 4


def test_a_single_variance_has_no_prior():
    assert prior_of([Variance(1.0, 4.0)]) == Prior()


def test_a_variance_of_rounding_stays_as_it_is():
    assert Prior(1.0, inf, 20.0).test(5, 1e-9).prior == 0


@pytest.mark.parametrize(("level", "expected"), [(0.05, 2.776), (0.01, 4.604)])
def test_student_s_t_is_that_of_the_tables(level, expected):
    assert StudentT(5).critical(level) == pytest.approx(expected, abs=1e-3)
    assert StudentT(5).two_sided(expected) == pytest.approx(level, abs=1e-4)


def _pair():
    return {"arm": HAND, "other": OTHER}
