"""Differences adjusted for the loss of a control that has more seeds than the arms."""

from math import hypot, sqrt

import numpy as np
import pytest

from mlx_attn.comparison.decisions import Case, moderated_t, p_values_of
from mlx_attn.comparison.regression import adjusted
from mlx_attn.comparison.result import judge_losses
from mlx_attn.comparison.run import ComparisonRun
from mlx_attn.comparison.show import plan_rows, summary_lines, verdict_lines
from mlx_attn.comparison.t_tests import FAMILIES
from mlx_attn.errors import ConfigError

CONTROL = (1.0, 1.2, 1.1)
"""Mean 1.1, squared deviations 0.02."""


def case(differences, control=CONTROL, **fields) -> Case:
    return Case(differences=differences, margin=0.01, control=control, world="one", **fields)


def test_the_numbers_are_those_of_a_hand_computation():
    """The other arm loses half of what the control gains: its slope is -0.05 / 0.1 = -1/2.

    With three pairs and six further seeds, b = 6 / 9 * -1/2 = -1/3.
    """
    further = (1.0, 1.1, 1.2, 1.0, 1.1, 1.2)
    other = case((0.05, -0.05, 0.0))
    arm = case((0.30, 0.20, 0.25), tuning=0.01, further=further)
    new = adjusted({"arm": arm, "other": other})
    assert new["arm"].slope == pytest.approx(-1 / 3)
    # Each difference moves by a third of how far its control is from 1.1.
    assert new["arm"].differences == pytest.approx((0.30 - 0.1 / 3, 0.20 + 0.1 / 3, 0.25))
    of_mean = np.std([*CONTROL, *further], ddof=1) / 3 / sqrt(6)
    assert new["arm"].tuning == pytest.approx(hypot(0.01, of_mean))
    assert new["other"] == other


@pytest.mark.parametrize(
    ("other", "slope"),
    [((0.5, 0.5, 0.5), 0), ((0.3, 0.5, 0.4), 0), ((0.6, 0.1, 0.35), -1), ((0.6, 0.4, 0.5), -1)],
    ids=["pairs are perfect", "above 0", "below -1", "pairs tell nothing"],
)
def test_the_slope_is_that_of_the_other_runs_between_minus_1_and_0(other, slope):
    arm = case((0, 0, 0), further=(1.0, 1.2, 1.1))
    new = adjusted({"arm": arm, "other": case(other)})
    assert new["arm"].slope == pytest.approx(slope / 2)


def test_tuning_runs_show_the_slope_and_are_adjusted_like_the_pairs():
    lent = {"replicates": ((0.4, 0.2),), "control_replicates": ((1.0, 1.2),)}
    new = adjusted({"arm": case((0.1, 0.3, 0.2), further=(1.1, 1.1, 1.1), **lent)})["arm"]
    assert new.slope == pytest.approx(-1 / 2)
    assert new.replicates[0][0] - new.replicates[0][1] == pytest.approx(0.1)


@pytest.mark.parametrize(
    "facts", [{}, {"replicates": ((0.1, 0.2),), "control_replicates": ((1.1, 1.1),)}]
)
def test_without_other_runs_that_show_a_slope_nothing_is_adjusted(facts):
    alone = case((0.1, 0.3, 0.2), further=(1.0, 1.1), **facts)
    assert adjusted({"arm": alone}) == {"arm": alone}


def drawn(random: np.random.Generator, family: str, likeness: float) -> dict[str, Case]:
    """Five pairs and nine of tuning for each of two arms of mean 0, and 20 runs of the control.

    `likeness` is the correlation of the two losses of a pair.
    """
    draw = FAMILIES[family]
    *control, further = (draw(random, (n,)) for n in (5, 3, 3, 3, 20))
    losses = [tuple(group.tolist()) for group in control]
    cases: dict[str, Case] = {}
    for arm in "ab":
        runs = [likeness * c + sqrt(1 - likeness**2) * draw(random, c.shape) for c in control]
        pairs = [tuple((a - c).tolist()) for a, c in zip(runs, control, strict=True)]
        lent = {"replicates": tuple(pairs[1:]), "control_replicates": tuple(losses[1:])}
        cases[arm] = case(pairs[0], losses[0], further=tuple(further.tolist()), **lent)
    return cases


@pytest.mark.parametrize(("likeness", "most"), [(0.0, 0.82), (0.95, 1.02)])
def test_the_error_shrinks_if_pairs_are_unlike_and_stays_if_they_are_alike(likeness, most):
    """At best by sqrt((1 + 5 / 25) / 2) = 0.77 in pairs that have nothing in common."""
    random, squares = np.random.default_rng(3), np.zeros(2)
    for _ in range(1_000):
        cases = drawn(random, "normal", likeness)
        new = adjusted(cases)
        squares += [np.mean(one["a"].differences) ** 2 for one in (cases, new)]
    assert sqrt(squares[1] / squares[0]) < most


@pytest.mark.parametrize("likeness", [0.0, 0.9])
@pytest.mark.parametrize("family", FAMILIES)
def test_equal_arms_are_called_better_or_worse_in_at_most_5_5_percent(family, likeness):
    random, wrong, draws = np.random.default_rng(5), 0, 250
    for _ in range(draws):
        cases = adjusted(drawn(random, family, likeness))
        p_values = p_values_of(cases, moderated_t(cases)).values()
        wrong += any(p <= 0.05 for _, p, _ in p_values)
    assert wrong / draws <= 0.055 + 2 * sqrt(0.055 * 0.945 / draws)


def test_a_comparison_trains_the_control_with_further_seeds_which_later_become_pairs(
    protocol, runner, conclusion
):
    runner.noise = 0.01
    plan = {"budgets": ("steps",), "control_seeds": 4}
    made = conclusion(protocol(**plan), runner)
    done = [t for t in runner.done if t.settings["init_seed"] < 0 and t.seed < 100 and not t.jitter]
    assert [t.seed for t in done if t.arm == "standard"] == [0, 1, 2, 3, 4, 5, 6]
    assert [t.seed for t in done if t.arm == "no-query"] == [0, 1, 2]
    verdict = made.budget("steps").verdicts["no-query"]
    assert len(made.further_control) == 4
    assert -4 / 7 <= verdict.slope < 0
    assert verdict.mean == pytest.approx(np.mean(verdict.differences))
    first = len(runner.done)
    conclusion(protocol(seeds=5, **plan), runner)
    assert [(t.arm, t.seed) for t in runner.done[first:] if t.settings["init_seed"] < 0] == [
        *(("no-query", 3), ("no-query", 4)),
        *(("standard", 7), ("standard", 8)),
    ]


def test_answers_and_the_plan_say_how_many_more_seeds_the_control_has(protocol, runner, conclusion):
    runner.noise = 0.01
    plan = protocol(budgets=("steps",), control_seeds=4)
    (line,) = summary_lines(conclusion(plan, runner))
    assert ", 3 seeds and 4 more of standard" in line
    rows = dict(plan_rows(ComparisonRun(plan, runner)))
    assert rows["seeds"] == "3, and 4 more of standard"


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"looks": (6, 10)}, "control_seeds=4 need one look"),
        ({"scales": (1.0,)}, "need other runs that show the slope"),
        ({"control_seeds": -1}, "control_seeds"),
    ],
    ids=["several looks", "one arm that is not tuned", "negative"],
)
def test_further_seeds_that_cannot_be_used_are_refused(protocol, fields, complaint):
    with pytest.raises(ConfigError, match=complaint):
        protocol(**{"control_seeds": 4, **fields})


def test_two_arms_without_tuning_show_each_other_s_slope(protocol, runner, conclusion):
    runner.noise = 0.01
    arms = "standard", "no-query", "no-value"
    made = conclusion(protocol(*arms, scales=(1.0,), budgets=("steps",), control_seeds=4), runner)
    assert any(verdict.slope for verdict in made.budget("steps").verdicts.values())


def test_runs_of_another_program_s_control_that_no_arm_has_adjust_the_differences():
    control = {str(seed): loss for seed, loss in enumerate((*CONTROL, 1.0, 1.1, 1.2))}
    losses = {
        "standard": control,
        "merged": {"0": 1.30, "1": 1.40, "2": 1.36},
        "no-query": {"0": 1.05, "1": 1.15, "2": 1.10},
    }
    verdicts = judge_losses(losses, 0.01, 0.95)
    paired = judge_losses({**losses, "standard": dict([*control.items()][:3])}, 0.01, 0.95)
    assert verdicts["merged"].slope == pytest.approx(-0.5 * 3 / 6)
    assert paired["merged"].slope == 0
    (line, _) = verdict_lines("standard", verdicts, 0.95)
    assert "3 pairs, adjusted by further runs of standard with slope -0.25" in line
