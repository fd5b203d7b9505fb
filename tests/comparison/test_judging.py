"""Verdicts on differences whose answers are known."""

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
from scipy import stats

from mlx_attn.comparison.judging import (
    TUNING_DEGREES,
    TUNING_SHARE,
    Contrast,
    Sample,
    holm,
    judge,
    judge_solving,
)
from mlx_attn.comparison.result import MOST_SEEDS, Solving, Verdict

HAND = (0.010, 0.012, 0.009, 0.011, 0.020)
"""Mean 0.0124; deviations -24, -4, -34, -14, 76 times 1e-4, their squares' sum 77.2e-6."""


def alone(differences, margin=0.001, **facts) -> Verdict:
    return judge({"arm": Contrast(differences=tuple(differences), **facts)}, margin)["arm"]


@pytest.mark.parametrize(("differences", "word"), [(HAND, "worse"), (HAND[:2], "not known")])
def test_a_single_arm_is_judged_by_student_s_paired_t(differences, word):
    verdict, expected = alone(differences), stats.ttest_1samp(differences, 0)
    assert verdict.p_holm == pytest.approx(expected[1])
    assert verdict.interval == pytest.approx(expected.confidence_interval(0.95))
    assert (verdict.word, verdict.lent) == (word, 0)


def test_tuning_pairs_lend_their_degrees_of_freedom_and_no_more_than_eight():
    """Own variance 19.3e-6 with 4 degrees; three groups of three with variance 4e-6 have 6."""
    groups = ((0.0, 0.002, 0.004),) * 3
    verdict = alone(HAND, tuning=groups)
    error = sqrt((4 * 19.3e-6 + 6 * 4e-6) / 10 * (1 / 5 + TUNING_SHARE / 3))
    assert verdict.lent == 6
    assert verdict.p_holm == pytest.approx(2 * stats.t.sf(0.0124 / error, 10))
    assert alone(HAND, tuning=groups * 3).lent == TUNING_DEGREES


def test_all_other_arms_together_lend_two_degrees_of_freedom():
    """Those of variance 2e-4 and 4e-4, each with two degrees, have a mean of 3e-4."""
    wide, wider = (0.0, 0.01, 0.02), (0.0, 0.02, 0.04)
    contrasts = {"arm": HAND, "wide": wide, "wider": wider}
    found = judge({arm: Contrast(differences=each) for arm, each in contrasts.items()}, 0.001)
    error = sqrt((4 * 19.3e-6 + 2 * (1e-4 + 4e-4) / 2) / 6 / 5)
    assert found["arm"].lent == 2
    reach = stats.t.ppf(0.975, 6) * error
    assert found["arm"].interval == pytest.approx((0.0124 - reach, 0.0124 + reach))


@pytest.mark.parametrize(("size", "lent"), [(0.0, 0), (0.3, 0), (0.4, 2)])
def test_an_arm_that_nearly_equals_the_control_lends_nothing(size, lent):
    """Below a third of the spread, a ninth of the variance."""
    other = Contrast(differences=tuple(size * each for each in HAND))
    found = judge({"arm": Contrast(differences=HAND), "other": other}, 0.001)["arm"]
    assert (found.lent, found.interval == alone(HAND).interval) == (lent, not lent)


def test_one_tuning_seed_lends_nothing_and_adds_its_share_of_the_variance():
    verdict = alone(HAND, tuning=((0.0,), (0.1,)))
    reach = stats.t.ppf(0.975, 4) * sqrt(19.3e-6 * (1 / 5 + TUNING_SHARE))
    assert verdict.interval == pytest.approx((0.0124 - reach, 0.0124 + reach))


def test_p_values_are_corrected_by_holm():
    assert holm(np.array([0.03, 0.01, 0.04])) == pytest.approx([0.06, 0.03, 0.06])
    assert holm(np.array([[0.9, 0.8], [0.01, 0.5]])).tolist() == [[1.0, 1.0], [0.02, 0.5]]
    assert holm(np.array([])).tolist() == []


@pytest.mark.parametrize(
    ("differences", "margin", "word"),
    [
        (HAND, 0.001, "worse"),
        ([-d for d in HAND], 0.001, "better"),
        (HAND, 0.017, "the same"),
        (HAND, 0.0165, "worse"),
        ((-0.01, 0.02, 0.0), 0.01, "not known"),
        ((0.0, 0.0, 0.0), 0.01, "the same"),
        ((0.1, 0.1, 0.1), 0.01, "not known"),
        ((0.0, 0.0, 0.0), 0.0, "not known"),
        ((0.1,), 0.01, "not known"),
    ],
)
def test_four_words(differences, margin, word):
    """The 90 % interval of HAND ends at 0.0124 + 2.132 * sqrt(19.3e-6 / 5) = 0.0166."""
    verdict = alone(differences, margin)
    assert verdict.word == word
    assert (verdict.seeds_needed is None) == (word != "not known" or not verdict.interval)
    assert (verdict.interval is None) == (differences in [(0.1,) * 3, (0.1,)])


@pytest.mark.parametrize(("least", "margin"), [(0.1, 0.02), (0.03, 0.015), (-0.01, 0)])
def test_the_margin_is_at_most_half_of_the_least_that_the_part_may_be_worth(least, margin):
    reference = replace(alone(HAND), mean=0.2, interval=(least, 0.4 - least))
    verdict = judge({"arm": Contrast(differences=HAND)}, 0.02, reference=reference)["arm"]
    assert verdict.margin == margin
    assert verdict.share == (pytest.approx(0.0124 / 0.2) if margin else None)
    assert verdict.word == ("the same" if margin == 0.02 else "worse")


@pytest.mark.parametrize(("mean", "margin"), [(0.4, 0.0), (-0.8, 0.0), (1.5, 0.0), (0.3, 0.6)])
def test_as_many_seeds_as_are_needed_decide_four_times_out_of_five(mean, margin):
    sample = Sample(seeds=3, mean=mean, variance=1.0, lent=6, tuning_seeds=0)
    seeds, random = sample.seeds_needed(margin, 0.05, 0.05), np.random.default_rng(0)
    pairs = mean + random.standard_normal((20_000, seeds))
    lent = random.chisquare(6, 20_000)
    variance = ((seeds - 1) * pairs.var(1, ddof=1) + lent) / (seeds + 5)
    errors, law = np.sqrt(variance / seeds), stats.t(seeds + 5)
    different = 2 * law.sf(abs(pairs.mean(1) / errors)) <= 0.05
    found = np.mean(different | (abs(pairs.mean(1)) + law.isf(0.05) * errors < margin))
    assert 0.79 < found < (0.92 if seeds < 10 else 0.83)


def test_more_seeds_bring_more_tuning_seeds_and_so_may_decide():
    sample = Sample(seeds=4, mean=1.0, variance=0.8, lent=10, tuning_seeds=1)
    assert sample.seeds_needed(0.0, 0.05, 0.05) == MOST_SEEDS
    found = sample.seeds_needed(0.0, 0.05, 0.05, lambda n: 1 + (n >= 20))
    assert found == replace(sample, tuning_seeds=2, seeds=19).seeds_needed(0.0, 0.05, 0.05)


def test_a_task_is_judged_by_how_many_seeds_solve_it():
    found = judge_solving(
        {
            "standard": Solving.of([100, 200, 300, 400, 500]),
            "never": Solving.of([None] * 5),
            "rarely": Solving.of([100, None, None, None, 300]),
            "later": Solving.of([900] * 5),
        }
    )
    assert [one.word for one in found.values()] == ["", "worse", "not known", "not known"]
    assert [one.solved for one in found.values()] == [5, 0, 2, 5]
    assert [one.median_steps for one in found.values()] == [300, None, None, 900]
    # 2 of the 252 splits of ten trainings are as extreme; three arms are corrected for.
    assert found["never"].p_holm == pytest.approx(3 * 2 / 252)
    (other, _) = judge_solving(
        {"never": Solving.of([None] * 5), "standard": Solving.of([100] * 5)}
    ).values()
    assert other.p_holm is None
