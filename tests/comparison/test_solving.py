"""Solve rates and steps to a threshold, on data whose answers are in textbooks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from mlx_attn.comparison.solving import (
    TimeToSolve,
    _log_rank_scores,
    judge_solving,
    log_rank,
    solve_rate,
)


def attempts(*steps: int) -> list[TimeToSolve]:
    """Negative numbers stand for trainings that ended unsolved."""
    return [TimeToSolve(steps=abs(n), solved=n > 0) for n in steps]


# Weeks of remission of leukaemia patients (Freireich et al., 1963), the classical example.
TREATED = attempts(
    *(6, 6, 6, 7, 10, 13, 16, 22, 23),
    *(-6, -9, -10, -11, -17, -19, -20, -25, -32, -32, -34, -35),
)
UNTREATED = attempts(1, 1, 2, 2, 3, 4, 4, 5, 5, 8, 8, 8, 8, 11, 11, 12, 12, 15, 17, 22, 23)

arms = st.lists(st.integers(1, 9).flatmap(lambda n: st.sampled_from([n, -n])), min_size=1).map(
    lambda steps: attempts(*steps[:6])
)


def test_the_textbook_s_medians_and_observed_less_expected():
    """9 relapses where 19.25 were expected."""
    assert solve_rate(TREATED).median_steps == 23
    assert solve_rate(UNTREATED).median_steps == 8
    scores = _log_rank_scores([*TREATED, *UNTREATED])[: len(TREATED)]
    assert scores.sum() == pytest.approx(-10.25, abs=0.001)
    assert log_rank(TREATED, UNTREATED) < 0.001


def test_four_solved_of_five():
    found = solve_rate(attempts(100, 200, -1000, 300, 400))
    assert (found.solved, found.runs, found.median_steps) == (4, 5, 300)
    assert found.interval == pytest.approx((0.2836, 0.9949), abs=1e-4)  # Clopper and Pearson


@pytest.mark.parametrize("steps", [(-100, -100, -100), (50, -100, -100)])
def test_there_is_no_median_where_fewer_than_half_are_solved(steps):
    assert solve_rate(attempts(*steps)).median_steps is None


@pytest.mark.parametrize("runs", [3, 5, 10])
def test_the_interval_holds_every_true_rate_as_often_as_asked(runs):
    solved = np.arange(runs + 1)
    intervals = [solve_rate(attempts(*[1] * k, *[-1] * (runs - k))).interval for k in solved]
    low, high = np.array(intervals).T
    for rate in np.linspace(0, 1, 101):
        assert stats.binom.pmf(solved, runs, rate)[(low <= rate) & (rate <= high)].sum() >= 0.95


def test_all_splits_of_two_arms_of_three_count():
    """The observed split and its mirror image, of 20."""
    assert log_rank(attempts(1, 2, 3), attempts(-9, -9, -9)) == pytest.approx(2 / 20)


def test_many_trainings_agree_with_the_log_rank_test_of_large_samples():
    random = np.random.default_rng(0)
    first, second = random.integers(1, 100, 40), random.integers(20, 120, 40)
    expected = stats.logrank(first, second).pvalue
    found = log_rank(attempts(*first.tolist()), attempts(*second.tolist()))
    assert found == pytest.approx(expected, abs=0.01)


@settings(max_examples=60)
@given(arms, arms)
def test_it_does_not_matter_which_arm_comes_first(first, second):
    p_value = log_rank(first, second)
    assert 0 < p_value <= 1
    assert log_rank(second, first) == pytest.approx(p_value)


def test_equal_arms_are_called_different_at_most_5_times_in_100():
    steps = np.random.default_rng(1).integers(1, 30, (300, 2, 5))
    drawn = np.where(steps > 20, -20, steps).tolist()
    rejected = [log_rank(attempts(*a), attempts(*b)) <= 0.05 for a, b in drawn]
    assert np.mean(rejected) <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / 300)


def test_an_arm_that_solves_a_task_later_is_worse_and_its_mirror_better():
    slow, fast = attempts(400, 440, -500, -500, 480), attempts(100, 120, 140, 90, 110)
    assert judge_solving({"control": fast, "arm": slow}, 0.95)["arm"].word == "worse"
    assert judge_solving({"control": slow, "arm": fast}, 0.95)["arm"].word == "better"


def test_the_control_has_a_rate_and_no_word():
    found = judge_solving({"control": attempts(100, -200), "arm": attempts(100, 150)}, 0.95)
    assert (found["control"].solved, found["control"].runs) == (1, 2)
    assert (found["control"].word, found["control"].p_holm) == ("", None)
    assert found["arm"].word == "undecided"


def test_p_values_are_corrected_for_all_arms_and_for_several_looks():
    """Of 252 splits of five and five two are as extreme: p = 0.008, 0.016 for two arms."""
    slow, fast = attempts(*[-500] * 5), attempts(100, 120, 140, 90, 110)
    two = {"control": fast, "slow": slow, "like": attempts(100, 120, 140, 90, 110)}
    found = judge_solving(two, 0.95)
    assert found["slow"].p_holm == pytest.approx(2 * 2 / 252)
    assert found["slow"].word == "worse"
    assert judge_solving(two, 0.95, looks=4)["slow"].word == "undecided"
