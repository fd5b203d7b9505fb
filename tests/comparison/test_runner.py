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
from mlx_attn.comparison.tuning import TunedArm, trial_for
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
    run = ComparisonRun(protocol(), Runner(store), {})
    choice = TunedArm(run.protocol.arms[0])
    return [trial_for(run.protocol, choice, seed) for seed in (0, 1)]


def without_time(training):
    assert isinstance(training, TrialResult)
    curve = tuple(replace(point, seconds=0.0) for point in training.curve)
    return replace(training, tok_s=0.0, seconds=0.0, peak_memory=0, curve=curve)


def test_side_by_side_trainings_end_like_one_in_this_process_and_leave_no_worker(trials, store):
    outcomes = dict(Runner(store, 2)(trials))
    assert not multiprocessing.active_children()
    alone = [without_time(single_stream(train_trial)(trial)) for trial in trials]
    assert [without_time(outcomes[trial]) for trial in trials] == alone


def test_a_finished_training_is_not_done_again(in_this_process, trials, store):
    list(Runner(store, 1)(trials[:1]))
    assert [trial for trial, _ in Runner(store, 1)(trials)] == trials[1:]


def test_whoever_stops_listening_loses_only_what_is_under_way(trials, store):
    working = Runner(store, 1)(trials)
    first, _ = next(working)
    working.close()
    assert first in store
    assert sum(trial in store for trial in trials) == 1


def test_a_training_that_diverges_is_kept_as_such(in_this_process, trials, store):
    trial = replace(trials[0], settings={**trials[0].settings, "lr": 1e30, "clip": 0.0})
    ((_, outcome),) = Runner(store, 1)([trial])
    assert isinstance(outcome, Diverged)
    assert store[trial] == outcome


def test_a_worker_that_dies_is_one_line(trials, store, monkeypatch):
    monkeypatch.setattr(executors, "_begin_worker", os.abort)
    with pytest.raises(
        RunError, match=r"^the training of 'standard', seed [01], failed: .*continues$"
    ):
        list(Runner(store, 1)(trials))


def test_a_changed_text_is_not_taken_for_the_old_one(in_this_process, trials, store, story):
    story.write_text(story.read_text()[::-1])
    with pytest.raises(RunError, match="has changed since the comparison began"):
        list(Runner(store, 1)(trials))


def test_a_damaged_file_names_itself(in_this_process, trials, store):
    list(Runner(store, 1)(trials[:1]))
    (file,) = store.folder.iterdir()
    file.write_text("{")
    with pytest.raises(RunError, match="delete the file to train it again"):
        store[trials[0]]


def test_as_many_trainings_at_once_as_there_are_cores(store):
    with forced_path("mac-cpu"):
        assert Runner(store).size == os.cpu_count()


def test_a_gpu_trains_one_at_a_time(store, gpu_path):
    assert Runner(store).size == 1


def test_a_training_records_its_course(trials):
    training = train_trial(trials[0])
    assert isinstance(training, TrialResult)
    assert [point.step for point in training.curve] == list(range(1, 9))
    assert [ranks.step for ranks in training.ranks] == list(range(9))
    assert training.val_loss == training.curve[-1].val_loss
    assert training.sample


class Unlucky(Engine):
    """Loses the worker of each training some times, and then trains in this process."""

    def __init__(self, times: int):
        self._left: dict[str, int] = {}
        self._times = times
        self.submitted: list[str] = []

    def workers(self):
        return [Worker("one"), Worker("two")]

    def submit(self, worker, order):
        future: Future[Any] = Future()
        digest = order["digest"]
        self.submitted.append(digest)
        left = self._left.setdefault(digest, self._times)
        self._left[digest] = left - 1
        if left > 0:
            future.set_exception(BrokenExecutor())
        else:
            future.set_result(train_order(order))
        return future


def test_a_training_whose_worker_is_lost_is_repeated_three_times(trials, store):
    engine = Unlucky(3)
    outcomes = dict(Runner(store, engine=engine)(trials))
    assert set(outcomes) == set(trials)
    assert Counter(engine.submitted) == dict.fromkeys([t.digest for t in trials], 4)


def test_one_that_is_lost_four_times_is_named(trials, store):
    with pytest.raises(
        RunError, match=r"'standard', seed [01], failed: its worker was lost 4 times; finished"
    ):
        list(Runner(store, engine=Unlucky(4))(trials))


class Unfit(Unlucky):
    """Its first worker answers that it is unfit."""

    def __init__(self):
        super().__init__(0)
        self.there, self.lines = [Worker("one"), Worker("two")], list[str]()

    def workers(self):
        return self.there

    def submit(self, worker, order):
        if worker.name == "two":
            return super().submit(worker, order)
        future: Future[Any] = Future()
        future.set_result({"unfit": "mlx is 1 here"})
        return future

    def leave_out(self, worker, reason):
        self.there = [other for other in self.there if other != worker]
        self.lines.append(reason)


def test_a_worker_that_is_unfit_gets_no_more_and_loses_nothing(trials, store):
    engine = Unfit()
    assert set(dict(Runner(store, engine=engine)(trials))) == set(trials)
    assert engine.lines == ["mlx is 1 here"]
