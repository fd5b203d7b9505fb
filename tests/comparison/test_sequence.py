"""The rule for ideas that are judged one after another."""

from itertools import pairwise

import ideas
import numpy as np
import pytest
from scipy import stats

from mlx_attn.comparison.sequence import CONTROL_SEEDS, ERROR, LOOKS, level_of, look_at, variance_of

CONTROL = np.random.default_rng(1).standard_normal(CONTROL_SEEDS).tolist()
VARIANCE = variance_of(CONTROL, [])


def differences(n: int, gain: float) -> list[float]:
    return [one - other - gain for one, other in pairwise(CONTROL[: n + 1])]


def test_the_levels_of_all_ideas_and_of_all_looks_add_up_to_the_error():
    levels = [level_of(k) for k in range(1, 1000)]
    assert sum(levels) == pytest.approx(ERROR)
    assert sum(levels[:50]) == pytest.approx(0.9 * ERROR)
    assert sum(LOOKS.values()) == 1


@pytest.mark.parametrize(
    ("n", "gain", "word", "is_last"),
    [
        (3, 5.0, "not known", False),  # the first look keeps nothing
        (3, -0.5, "not known", True),
        (3, -9.0, "worse", True),
        (5, 5.0, "better", True),
        (5, 1.0, "not known", False),
        (5, -5.0, "worse", True),
        (10, 1.0, "not known", True),
        (10, 0.5, "the same", True),
    ],
)
def test_an_idea_is_kept_dropped_or_looked_at_again(n, gain, word, is_last):
    margin = 9.0 if word == "the same" else 0.0
    look = look_at(differences(n, gain), VARIANCE, level_of(1), margin)
    assert (look.verdict, look.is_open) == (word, not is_last)


@pytest.mark.parametrize(("wildness", "level"), [(1.0, 0.001), (10.0, 0.001), (1.0, 1e-30)])
def test_the_interval_is_student_s_with_two_degrees_of_the_control_s_spread(wildness, level):
    own = [wildness * x for x in differences(5, 0.0)]
    variance = (4 * np.var(own, ddof=1) + 2 * VARIANCE) / 6
    reach = stats.t.isf(LOOKS[5] * level, 6) * (variance / 5) ** 0.5
    expected = np.mean(own) - reach, np.mean(own) + reach
    assert look_at(own, VARIANCE, level).interval == pytest.approx(expected)


def test_earlier_ideas_lend_their_spread_unless_they_are_wild():
    found = variance_of([0, 2], [[0, 6, 12], [0, 2, 2]])  # 2 * 2, and 36 and 4 / 3
    assert found == pytest.approx((4 + 2 * 4 / 3) / 3)


def test_few_nights_keep_what_does_nothing_and_most_find_two_standard_deviations():
    random, kind = np.random.default_rng(1), ideas.KINDS["normal"]
    nulls, real = ([ideas.night(random, kind, "ideas", gain) for _ in range(40)] for gain in (0, 2))
    assert sum(each.nulls > 0 for each in nulls) <= 2
    assert sum(each.real for each in real) >= 32
