"""On which kind of machine a trial is trained, and what a report says of it."""

from dataclasses import replace

import pytest

from mlx_attn.comparison.executors import Worker
from mlx_attn.comparison.machines import GRACE, Placement, kind_of, machines_of, mixed_pairs
from mlx_attn.comparison.result import TrialResult
from mlx_attn.comparison.tuning import TunedArm, trial_for
from mlx_attn.machine.facts import machine_kind

M2, M4 = Worker("one", "Apple M2"), Worker("two", "Apple M4")


class Clock:
    """A time that tests set."""

    def __init__(self):
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def placement(clock):
    return Placement(clock)


@pytest.fixture
def trials(protocol):
    """Two arms, two seeds, seed by seed."""
    plan = protocol()
    return [trial_for(plan, TunedArm(arm), seed) for seed in (0, 1) for arm in plan.arms]


def test_all_arms_of_a_seed_go_to_one_kind_of_machine(placement, trials):
    placement.see([M2, M4])
    assert placement.choose(trials, M2) == trials[0]
    assert placement.choose(trials[1:], M4) == trials[2]
    assert placement.choose(trials[1:], M2) == trials[1]


def test_equal_seconds_count_on_the_kind_with_the_most_workers(placement, trials):
    lines = []
    placement.one_kind, placement.notice = True, lines.append
    placement.see([M2, M4, Worker("three", "Apple M4")])
    assert placement.choose(trials, M2) is None
    assert [placement.choose(trials[i:], M4) for i in range(4)] == trials
    assert "workers of Apple M2 take no part" in lines[0]


def test_a_seed_goes_on_where_its_finished_trainings_were_made(placement, trials, finished):
    placement.remember(trials[0], finished(chip="Apple M2"))
    there = Worker("one", kind_of(finished(chip="Apple M2").machine))
    placement.see([there, M4])
    assert placement.choose(trials[1:2], M4) is None
    assert placement.choose(trials[1:2], there) == trials[1]
    # A process of this machine takes any trial.
    assert placement.choose(trials[1:2], Worker("process 0")) == trials[1]


def test_records_without_a_machine_bind_no_seed(placement, trials, finished):
    placement.remember(trials[0], replace(finished(), machine={}))
    placement.see([M4])
    assert placement.choose(trials[1:2], M4) == trials[1]


def test_a_seed_waits_a_minute_for_its_kind_and_then_goes_on_elsewhere(placement, trials, clock):
    lines = []
    placement.notice = lines.append
    placement.see([M2])
    placement.choose(trials, M2)
    placement.see([M4])
    assert placement.choose(trials[1:2], M4) is None
    clock.now = GRACE + 1
    placement.see([M4])
    assert placement.choose(trials[1:2], M4) == trials[1]
    assert lines == ["no worker of Apple M2 is left: seed 0 goes on with Apple M4"]


@pytest.fixture
def finished(protocol, runner, conclusion):
    """Makes the result of a training on a chip."""
    result = conclusion(protocol(), runner).budgets[0].arms[0].trainings[0]
    assert isinstance(result, TrialResult)
    return lambda chip="Apple M4": replace(result, machine={**machine_kind(), "chip": chip})


@pytest.fixture
def on_two_chips(protocol, runner, conclusion):
    """Makes a comparison of which one arm's first seed was trained on another chip."""

    def make(*budgets):
        comparison = conclusion(protocol(budgets=budgets), runner)
        return replace(comparison, budgets=tuple(map(_moved, comparison.budgets)))

    def _moved(budget):
        arms = [replace(arm, trainings=tuple(map(_on("M4"), arm.trainings))) for arm in budget.arms]
        first, *others = arms[1].trainings
        arms[1] = replace(arms[1], trainings=(_on("M2")(first), *others))
        return replace(budget, arms=tuple(arms))

    def _on(chip):
        return lambda training: replace(training, machine={**machine_kind(), "chip": chip})

    return make


def test_pairs_of_different_machines_are_named(on_two_chips, protocol, runner, conclusion):
    comparison = on_two_chips("steps")
    assert mixed_pairs(comparison) == (
        "Trained on different kinds of machine, so compared across them: seeds 0 with equal steps."
    )
    assert [kind[:2] for kind in machines_of(comparison).split("; ")] == ["M2", "M4"]
    assert mixed_pairs(conclusion(protocol(), runner)) == ""


def test_a_machine_is_known_by_its_chip_and_its_arithmetic():
    machine = machine_kind()
    assert set(machine) == {"chip", "system", "mlx", "device", "arithmetic"}
    assert kind_of(machine) != kind_of({**machine, "arithmetic": "0"})
    assert kind_of(machine) == kind_of({**machine, "system": "another release"})
