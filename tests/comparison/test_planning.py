"""What a number of seeds can find, against the noncentral t law and against simulation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from mlx_attn.comparison.statistics import (
    MOST_SEEDS,
    critical_t,
    minimum_detectable_effect,
    power_of_difference,
    power_of_equivalence,
    required_seeds,
)
from mlx_attn.errors import ConfigError


def noncentral_power(effect, n, level):
    threshold, shift = critical_t(level, n - 1), effect * np.sqrt(n)
    return stats.nct.sf(threshold, n - 1, shift) + stats.nct.cdf(-threshold, n - 1, shift)


@pytest.mark.parametrize("n", [3, 5, 12])
@pytest.mark.parametrize("level", [0.05, 0.01])
@pytest.mark.parametrize("effect", [0.0, 0.7, 2.0])
def test_the_power_of_a_t_test_is_that_of_the_noncentral_t_law(n, level, effect):
    expected = noncentral_power(effect, n, level)
    assert power_of_difference(effect, n, level) == pytest.approx(expected, abs=2e-4)


@pytest.mark.parametrize(("effect", "margin", "n"), [(0.0, 1.0, 8), (0.5, 1.5, 5), (1.0, 1.0, 9)])
def test_the_power_of_the_two_one_sided_tests_is_as_simulated(effect, margin, n):
    drawn = np.random.default_rng(0).normal(effect, 1.0, (20_000, n))
    error = drawn.std(1, ddof=1) / np.sqrt(n)
    proved = np.abs(drawn.mean(1)) + critical_t(0.05, n - 1, sides=1) * error < margin
    assert power_of_equivalence(effect, margin, n, 0.05) == pytest.approx(proved.mean(), abs=0.01)


def test_what_seeds_resolve_is_in_cohen_s_tables():
    """5, 10 and 34 pairs find 1.68, 1.00 and 0.50 standard deviations."""
    found = [minimum_detectable_effect(1.0, n) for n in (5, 10, 34)]
    assert found == pytest.approx([1.68, 1.0, 0.5], abs=0.01)


def test_degrees_of_freedom_that_other_differences_lend_resolve_more():
    alone, lent = (minimum_detectable_effect(1.0, 5, arms=3, prior_df=df) for df in (0, 12))
    assert lent < 0.8 * alone
    assert required_seeds(1.0, 1.0001 * lent, arms=3, prior_df=12) == 5


@pytest.mark.parametrize("n", [2, 3, 5, 30])
@pytest.mark.parametrize("arms", [1, 3, 10])
def test_as_many_seeds_as_resolve_a_difference_are_those_that_find_it(n, arms):
    just_found = 1.0001 * minimum_detectable_effect(0.01, n, arms=arms)
    assert required_seeds(0.01, just_found, arms=arms) == n


@settings(max_examples=30)
@given(st.floats(-3, 3), st.floats(0, 3), st.floats(0.5, 4))
def test_no_smaller_number_of_seeds_decides(difference, delta, sd):
    def decides(n):
        effect, margin = difference / sd, delta / sd
        return max(
            power_of_difference(effect, n, 0.05), power_of_equivalence(effect, margin, n, 0.05)
        )

    needed = required_seeds(sd, difference, delta)
    assert all(decides(n) < 0.8 for n in range(max(2, needed - 20), needed))
    assert needed == MOST_SEEDS or decides(needed) >= 0.8


def test_what_no_number_of_seeds_decides_needs_the_most():
    assert required_seeds(1.0, 0.0) == required_seeds(0.0, 0.0) == MOST_SEEDS


def test_without_spread_two_seeds_decide():
    assert required_seeds(0.0, 0.1) == 2
    assert minimum_detectable_effect(0.0, 2) == 0.0


def test_one_seed_has_no_detectable_effect():
    with pytest.raises(ConfigError, match="2 seeds: got 1"):
        minimum_detectable_effect(1.0, 1)
