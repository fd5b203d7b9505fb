"""SLURM's adapter: submitit's jobs as futures; tried with submitit's executors for one machine."""

from contextlib import closing
from typing import Any

import pytest

from mlx_attn.comparison.cluster_engines import SlurmEngine
from mlx_attn.comparison.executors import open_engine
from mlx_attn.comparison.result import Comparison
from mlx_attn.comparison.run import ComparisonRun
from mlx_attn.comparison.runner import Runner
from mlx_attn.comparison.trial import Store
from mlx_attn.errors import RunError

submitit = pytest.importorskip("submitit")


class Job:
    """A job that ends when it is told to."""

    job_id = "7"

    def __init__(self, result: Any):
        self.outcome, self.ended, self.cancelled = result, False, False

    def done(self) -> bool:
        return self.ended

    def result(self) -> Any:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def cancel(self, check: bool) -> None:
        self.cancelled = True


class Jobs:
    """Submits jobs that compute nothing until they are told to end."""

    def __init__(self):
        self.jobs: list[Job] = []

    def submit(self, function: Any, *arguments: Any) -> Job:
        self.jobs.append(Job(function(*arguments)))
        return self.jobs[-1]


@pytest.fixture
def jobs():
    return Jobs()


def test_a_future_has_the_result_of_its_job(jobs):
    engine = SlurmEngine("", 2, jobs)
    futures = [engine.submit(worker, {}) for worker in engine.workers()]
    jobs.jobs[1].ended, jobs.jobs[1].outcome = True, {"stopped": True}
    engine.workers()
    assert [future.done() for future in futures] == [False, True]
    assert futures[1].result() == {"stopped": True}


def test_a_job_that_ends_without_a_result_was_lost(jobs):
    engine = SlurmEngine("", 1, jobs)
    future = engine.submit(engine.workers()[0], {})
    jobs.jobs[0].ended, jobs.jobs[0].outcome = True, RuntimeError("no output")
    engine.workers()
    error = future.exception()
    assert error
    assert engine.is_loss(error)


def test_what_has_not_ended_is_cancelled(jobs, protocol):
    engine = SlurmEngine("", 1, jobs)
    with engine.session([]):
        future = engine.submit(engine.workers()[0], {})
    assert jobs.jobs[0].cancelled
    assert future.cancelled()


def test_without_slurm_that_is_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match="--on slurm: ") as raised:
        open_engine("slurm", 0)
    assert "\n" not in str(raised.value)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_jobs_end_like_processes_here(protocol, tmp_path, in_this_process, monkeypatch):
    monkeypatch.setattr(SlurmEngine, "patience", 0.2)
    plan = protocol(seeds=2, budgets=("steps",), scales=(1.0,), noise=False)
    jobs = submitit.LocalExecutor(folder=tmp_path / "jobs")
    with closing(SlurmEngine("", 2, jobs)) as engine:
        run = ComparisonRun(plan, Runner(Store(tmp_path / "there"), engine=engine), {})
        there = list(run)[-1]
    here = list(ComparisonRun(plan, Runner(Store(tmp_path / "here"), 1), {}))[-1]
    assert isinstance(there, Comparison)
    assert isinstance(here, Comparison)
    assert there.budgets[0].verdicts == here.budgets[0].verdicts
