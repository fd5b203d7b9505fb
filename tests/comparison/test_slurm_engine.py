"""SLURM's adapter: submitit's jobs as futures; tried with submitit's executors for one machine."""

from contextlib import closing
from typing import Any

import pytest

from mlx_attn.comparison.cluster_engines import SlurmEngine, open_engine
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


def test_a_future_has_the_result_of_its_job_a_lost_one_an_error_and_others_are_cancelled(jobs):
    engine = SlurmEngine("", 3, jobs)
    with engine.session([]):
        done, lost, waiting = (engine.submit(worker, {}) for worker in engine.workers())
        jobs.jobs[0].ended, jobs.jobs[0].outcome = True, {"stopped": True}
        jobs.jobs[1].ended, jobs.jobs[1].outcome = True, RuntimeError("no output")
        engine.workers()
        assert done.result(timeout=0) == {"stopped": True}
        error = lost.exception(timeout=0)
        assert error
        assert engine.is_loss(error)
        assert not waiting.done()
    assert waiting.cancelled()
    assert [job.cancelled for job in jobs.jobs] == [False, False, True]


def test_without_slurm_that_is_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match="--on slurm: ") as raised:
        open_engine("slurm", 0)
    assert "\n" not in str(raised.value)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_jobs_end_like_processes_here(brief, tmp_path, in_this_process, monkeypatch, conclusion):
    monkeypatch.setattr(SlurmEngine, "patience", 0.2)
    jobs = submitit.LocalExecutor(folder=tmp_path / "jobs")
    with closing(SlurmEngine("", 2, jobs)) as engine:
        there = conclusion(brief, Runner(Store(tmp_path / "there"), engine=engine))
    here = conclusion(brief, Runner(Store(tmp_path / "here"), 1))
    assert there.budgets[0].verdicts == here.budgets[0].verdicts
