"""On which kind of machine a trial is trained, and what a report says of it."""

from dataclasses import replace

import pytest

from mlx_attn.comparison.executors import Worker
from mlx_attn.comparison.report import as_markdown
from mlx_attn.comparison.result import kind_of
from mlx_attn.comparison.runner import GRACE, Placement
from mlx_attn.comparison.show import mixed_pairs
from mlx_attn.machine.facts import machine_kind

M2, M4 = Worker("one", "Apple M2"), Worker("two", "Apple M4")


@pytest.fixture
def now():
    """Seconds of the clock, which tests set."""
    return [0.0]


@pytest.fixture
def lines():
    return []


@pytest.fixture
def placement(now, lines):
    return Placement(lines.append, lambda: now[0])


@pytest.fixture
def trials(protocol):
    """Two arms, two seeds, seed by seed."""
    plan = protocol()
    return [plan.trial(arm, seed) for seed in (0, 1) for arm in plan.arms]


def test_all_arms_of_a_seed_go_to_one_kind_of_machine(placement, trials):
    placement.see([M2, M4])
    assert placement.choose(trials, M2) == trials[0]
    assert placement.choose(trials[1:], M4) == trials[2]
    assert placement.choose(trials[1:], M2) == trials[1]


def test_equal_seconds_count_on_the_kind_with_the_most_workers(placement, trials, lines):
    placement.one_kind = True
    placement.see([M2, M4, Worker("three", "Apple M4")])
    assert placement.choose(trials, M2) is None
    assert [placement.choose(trials[i:], M4) for i in range(4)] == trials
    assert "workers of Apple M2 take no part" in lines[0]


@pytest.fixture
def finished(protocol, runner, conclusion):
    return conclusion(protocol(), runner).budgets[0].arms[0].trainings[0]


def on(chip):
    return {"machine": {**machine_kind(), "chip": chip}}


def test_a_seed_goes_on_where_its_finished_trainings_were_made(placement, trials, finished):
    trained = replace(finished, **on("Apple M2"))
    placement.remember(trials[0], trained)
    # Records of 0.1.0, which have no machine, bind no seed.
    placement.remember(trials[2], replace(finished, machine={}))
    there = Worker("one", trained.kind)
    placement.see([there, M4])
    assert placement.choose(trials[1:], M4) == trials[2]
    assert placement.choose(trials[1:2], M4) is None
    # A process of this machine takes any trial.
    for worker in (there, Worker("process 0")):
        assert placement.choose(trials[1:2], worker) == trials[1]


def test_a_seed_waits_a_minute_for_its_kind_and_then_goes_on_elsewhere(
    placement, trials, now, lines
):
    placement.see([M2])
    placement.choose(trials, M2)
    placement.see([M4])
    assert placement.choose(trials[1:2], M4) is None
    now[0] = GRACE + 1
    placement.see([M4])
    assert placement.choose(trials[1:2], M4) == trials[1]
    assert lines == ["no worker of Apple M2 is left: seed 0 goes on with Apple M4"]


def test_pairs_of_different_machines_are_named(protocol, runner, conclusion):
    comparison = conclusion(protocol(budgets=["steps"]), runner)
    assert mixed_pairs(comparison) == ""
    (budget,) = comparison.budgets
    trained = [[replace(t, **on("M4")) for t in arm.trainings] for arm in budget.arms]
    trained[1][0] = replace(trained[1][0], **on("M2"))
    pairs = zip(budget.arms, map(tuple, trained), strict=True)
    arms = tuple(replace(arm, trainings=trainings) for arm, trainings in pairs)
    mixed = replace(comparison, budgets=(replace(budget, arms=arms),))
    assert mixed_pairs(mixed) == (
        "Trained on different kinds of machine, so compared across them: seeds 0 with equal steps."
    )
    assert "| trained on | M2, " in as_markdown(mixed)


def test_a_machine_is_known_by_its_chip_and_its_arithmetic():
    machine = machine_kind()
    assert set(machine) == {"chip", "system", "mlx", "device", "arithmetic"}
    assert kind_of(machine) != kind_of({**machine, "arithmetic": "0"})
    assert kind_of(machine) == kind_of({**machine, "system": "another release"})
