"""What a comparison takes: its trainings, core-hours, and hours on workers of given speeds."""

import pytest

from mlx_attn.comparison.run import ComparisonRun
from mlx_attn.comparison.show import plan_rows
from mlx_attn.comparison.workload import hours_on, makespan, speeds_from, stages_of
from mlx_attn.errors import ConfigError


def test_each_idle_worker_takes_the_next_training_and_a_stage_waits_for_the_one_before():
    assert makespan([3.0, 1.0, 1.0, 1.0], [1.0, 1.0]) == 3.0
    assert makespan([4.0, 4.0, 4.0], [1.0, 0.5]) == 8.0
    assert makespan([], [1.0]) == 0.0
    assert hours_on([[3600.0, 1800.0], [3600.0]], [1.0, 1.0]) == 2.0


def test_speeds_are_written_as_counts():
    assert speeds_from("2:1.5,1:0.5") == (1.5, 1.5, 0.5)
    assert speeds_from("3") == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("text", ["", "0", "4:-1", "4:nan", "1:inf", "4;1"])
def test_speeds_that_are_none_are_one_line(text):
    with pytest.raises(ConfigError, match=r"^--workers "):
        speeds_from(text)


def test_the_plan_counts_what_is_not_trained_yet(protocol, runner, conclusion):
    plan = protocol(seeds=3, budgets=("steps",), scales=(0.5, 1.0))
    before = stages_of(ComparisonRun(plan, runner), 3)
    # Two arms, two rates, three seeds of tuning; two arms and two controls of three seeds.
    assert [len(stage) for stage in before] == [12, 10]
    assert all(seconds > 0 for stage in before for seconds in stage)
    conclusion(protocol(seeds=3, budgets=("steps",), scales=(1.0,)), runner)
    assert [len(stage) for stage in stages_of(ComparisonRun(plan, runner), 3)] == [12, 0]
    rows = dict(plan_rows(ComparisonRun(plan, runner), [[3600.0] * 6], (1, 2)))
    assert rows["trainings"] == "at least 6"
    assert rows["core-hours"].startswith("6 on one core")
    assert rows["hours"] == "2 on 2 workers (1 of speed 1, 1 of speed 2)"
