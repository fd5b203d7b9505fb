"""The simulated loop keeps what the package's own judge would keep."""

import numpy as np
import one_run
import pytest

from mlx_attn.comparison.judging import Contrast, judge


@pytest.mark.parametrize("rule", ["5 %", "spent", "even"])
@pytest.mark.parametrize("gain", [0.0, 0.012, 0.05])
def test_an_idea_is_kept_if_the_judge_calls_it_better(rule, gain):
    pairs = 0.01 * np.random.default_rng(1).standard_normal((1, one_run.IDEAS, 5)) - gain
    levels = one_run.levels(rule)
    words = [
        judge({"idea": Contrast(differences=tuple(d))}, one_run.MARGIN, 1 - level)["idea"].word
        for d, level in zip(pairs[0].tolist(), levels.tolist(), strict=True)
    ]
    assert one_run.better(pairs, levels).tolist() == [[word == "better" for word in words]]


def test_all_errors_of_a_night_add_up_to_five_percent():
    sums = [one_run.levels(rule).sum() for rule in ("spent", "even")]
    assert sums == pytest.approx([0.05 * 100 / 101, 0.05])


def test_one_run_keeps_what_is_below_the_best_so_far():
    kept, gain = one_run.believed(np.array([[3.0, 3.0, 2.0, 2.5, 1.0]]))
    assert kept.tolist() == [[False, True, False, True]]
    assert gain.tolist() == [[0.0, 1.0, 1.0, 2.0]]


def test_each_missing_change_has_one_place_in_a_night():
    found = np.full((one_run.NIGHTS, 3), np.inf)
    found[:, 1] = 1
    which = one_run.places(np.random.default_rng(1), found)
    assert [(which == form).sum(1).tolist() == [1 - form % 2] * one_run.NIGHTS for form in range(3)]
