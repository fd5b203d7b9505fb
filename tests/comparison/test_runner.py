"""Trials in a pool of processes."""

import multiprocessing
import os
from collections import Counter
from concurrent.futures import BrokenExecutor, Future
from dataclasses import replace
from typing import Any

import pytest

from mlx_attn.comparison import executors
from mlx_attn.comparison.executors import Engine, Worker
from mlx_attn.comparison.result import TrialResult
from mlx_attn.comparison.run import ComparisonRun
from mlx_attn.comparison.runner import Runner
from mlx_attn.comparison.trial import Diverged, Store, train_trial
from mlx_attn.comparison.worker import train_order
from mlx_attn.errors import RunError
from mlx_attn.machine.device import forced_path
from mlx_attn.machine.streams import single_stream


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "trainings")


@pytest.fixture
def trials(protocol, store):
    """Two trainings of a tenth of a second."""
    run = ComparisonRun(protocol(), Runner(store))
    return [run.protocol.trial(run.protocol.arms[0], seed) for seed in (0, 1)]


def without_time(training):
    assert isinstance(training, TrialResult)
    curve = tuple(replace(point, seconds=0.0) for point in training.curve)
    return replace(training, tok_s=0.0, seconds=0.0, peak_memory=0, curve=curve)


def test_side_by_side_trainings_end_like_one_in_this_process_and_leave_no_worker(trials, store):
    outcomes = dict(Runner(store, 2)(trials))
    assert not multiprocessing.active_children()
    alone = [without_time(single_stream(train_trial)(trial)) for trial in trials]
    assert [without_time(outcomes[trial]) for trial in trials] == alone


def test_a_worker_that_dies_is_one_line(trials, store, monkeypatch):
    monkeypatch.setattr(executors, "_begin_worker", os.abort)
    with pytest.raises(
        RunError, match=r"^the training of 'standard', seed [01], failed: .*continues$"
    ):
        list(Runner(store, 1)(trials))


def test_a_training_records_its_course(trials):
    training = train_trial(trials[0])
    assert isinstance(training, TrialResult)
    assert [point.step for point in training.curve] == list(range(1, 9))
    assert [ranks.step for ranks in training.ranks] == list(range(9))
    assert training.val_loss == training.curve[-1].val_loss
    assert training.sample


def test_a_finished_training_is_kept_and_not_done_again(in_this_process, trials, store):
    wild = replace(trials[0], settings={**trials[0].settings, "lr": 1e30, "clip": 0.0})
    ((_, outcome),) = Runner(store, 1)([wild])
    assert isinstance(outcome, Diverged)
    assert store[wild] == outcome
    assert [trial for trial, _ in Runner(store, 1)([wild, trials[1]])] == trials[1:]
    store.path(wild).write_text("{")
    with pytest.raises(RunError, match="delete the file to train it again"):
        store[wild]


def test_whoever_stops_listening_loses_only_what_is_under_way(trials, store):
    working = Runner(store, 1)(trials)
    first, _ = next(working)
    working.close()
    assert [trial for trial in trials if trial in store] == [first]


def test_a_changed_text_is_not_taken_for_the_old_one(in_this_process, trials, store, story):
    story.write_text(story.read_text()[::-1])
    with pytest.raises(RunError, match="has changed since the comparison began"):
        list(Runner(store, 1)(trials))


def test_as_many_trainings_at_once_as_there_are_cores_and_one_on_a_gpu(store, request):
    with forced_path("mac-cpu"):
        assert Runner(store).size == os.cpu_count()
    request.getfixturevalue("gpu_path")
    assert Runner(store).size == 1


class Faulty(Engine):
    """Trains in this process, after faults: each training loses its worker some times.

    Attributes:
        losses: How often each training loses its worker.
        unfit: Names of workers that answer that they are unfit.
        submitted: Digests of the orders.
    """

    def __init__(self, losses: int = 0, unfit: tuple[str, ...] = ()):
        self.losses, self.unfit = losses, unfit
        self.submitted, self.lines = Counter[str](), list[str]()
        self._there = [Worker("one"), Worker("two")]

    def workers(self):
        return self._there

    def submit(self, worker, order):
        future: Future[Any] = Future()
        self.submitted[order["digest"]] += 1
        if self.submitted[order["digest"]] <= self.losses:
            future.set_exception(BrokenExecutor())
        elif worker.name in self.unfit:
            future.set_result({"unfit": "mlx is 1 here"})
        else:
            future.set_result(train_order(order))
        return future

    def leave_out(self, worker, reason):
        self._there = [other for other in self._there if other != worker]
        self.lines.append(reason)


def test_a_training_whose_worker_is_lost_is_repeated_three_times_and_then_named(trials, store):
    engine = Faulty(losses=4)
    with pytest.raises(
        RunError, match=r"'standard', seed [01], failed: its worker was lost 4 times; finished"
    ):
        list(Runner(store, engine=engine)(trials))
    engine = Faulty(losses=3)
    assert set(dict(Runner(store, engine=engine)(trials))) == set(trials)
    assert engine.submitted == dict.fromkeys([trial.digest for trial in trials], 4)


def test_a_worker_that_is_unfit_gets_no_more_and_loses_nothing(trials, store):
    engine = Faulty(unfit=("one",))
    assert set(dict(Runner(store, engine=engine)(trials))) == set(trials)
    assert engine.lines == ["mlx is 1 here"]
