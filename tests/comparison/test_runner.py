"""Trials in a pool of processes, and shared among ranks."""

import multiprocessing
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from mlx_attn.comparison import runner as runner_module
from mlx_attn.comparison.result import TrialResult
from mlx_attn.comparison.run import ComparisonRun
from mlx_attn.comparison.runner import DistributedRunner, Runner
from mlx_attn.comparison.trial import Diverged, Store, train_trial
from mlx_attn.comparison.tuning import TunedArm, trial_for
from mlx_attn.cpu import single_stream
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.training.distributed import Distributed, LostRank


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
    monkeypatch.setattr(runner_module, "_begin_worker", os.abort)
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
    assert Runner(store).size == os.cpu_count()


def test_a_training_records_its_course(trials):
    training = train_trial(trials[0])
    assert isinstance(training, TrialResult)
    assert [point.step for point in training.curve] == list(range(1, 9))
    assert [ranks.step for ranks in training.ranks] == list(range(9))
    assert training.val_loss == training.curve[-1].val_loss
    assert training.sample


COUNT = 2


class Meeting:
    """Where threads give records and take all of them."""

    def __init__(self):
        self.barrier = threading.Barrier(COUNT, timeout=20)
        self.records: list[Any] = [None] * COUNT


class ThreadRanks(Distributed):
    """A thread as a rank."""

    def __init__(self, rank: int, meeting: Meeting):
        self.rank, self.size, self._meeting = rank, COUNT, meeting

    def gather(self, record: Any) -> list[Any]:
        try:
            self._meeting.records[self.rank] = record
            self._meeting.barrier.wait()
            everything = list(self._meeting.records)
            self._meeting.barrier.wait()
        except threading.BrokenBarrierError:
            raise LostRank("another of the 2 ranks ended") from None
        return everything


@pytest.fixture
def pair(runners, monkeypatch):
    """A runner for every rank."""
    monkeypatch.setattr(runner_module, "_TICK", 0.001)
    return [runners(f"rank {rank}", noise=0.01) for rank in range(COUNT)]


@pytest.fixture
def brief(protocol):
    """A comparison of one budget, without tuning."""
    return protocol(budgets=("steps",), scales=(1.0,))


@pytest.fixture
def share(conclusion) -> Callable[..., list[Any]]:
    """Lets every rank compare; gives what each came to, or what it raised."""

    def run(protocols, pair) -> list[Any]:
        meeting = Meeting()

        def one(rank: int) -> Any:
            try:
                ranks = ThreadRanks(rank, meeting)
                return conclusion(protocols[rank], DistributedRunner(pair[rank], ranks))
            except (ConfigError, RunError) as error:
                return error
            except KeyboardInterrupt as gone:
                meeting.barrier.abort()
                return gone

        with ThreadPoolExecutor(COUNT) as pool:
            return list(pool.map(one, range(COUNT)))

    return run


def files(runner):
    return {path.name: path.read_text() for path in runner.store.folder.iterdir()}


def test_all_ranks_conclude_what_one_alone_does(protocol, runners, pair, share, conclusion):
    alone = conclusion(protocol(), runners("alone", noise=0.01))
    assert share([protocol()] * COUNT, pair) == [alone] * COUNT


def test_every_store_has_everything_and_nothing_is_trained_twice(brief, pair, share):
    share([brief] * COUNT, pair)
    assert files(pair[0]) == files(pair[1])
    done = [trial.digest for runner in pair for trial in runner.done]
    assert sorted(f"{digest}.json" for digest in done) == sorted(files(pair[0]))
    assert abs(len(pair[0].done) - len(pair[1].done)) <= 3  # one at most in every stage


def test_what_any_rank_has_is_not_trained_again(brief, pair, share):
    for runner in pair:
        runner.fails_after = 3
    share([brief] * COUNT, pair)
    before = set(files(pair[0])) | set(files(pair[1]))
    for runner in pair:
        runner.fails_after, runner.done = float("inf"), []
    share([brief] * COUNT, pair)
    assert before
    assert not before & {f"{trial.digest}.json" for runner in pair for trial in runner.done}
    assert files(pair[0]) == files(pair[1])


def test_of_two_records_that_of_the_lower_rank_counts(brief, pair, share):
    share([brief] * COUNT, pair)
    mine = files(pair[0])
    (file, *_) = pair[1].store.folder.iterdir()
    file.write_text(file.read_text().replace('"tok_s": 100.0', '"tok_s": 90.0'))
    assert files(pair[1]) != mine
    share([brief] * COUNT, pair)
    assert files(pair[1]) == files(pair[0]) == mine


def test_a_lost_rank_ends_the_other_and_says_what_is_kept(brief, pair, share):
    pair[1].fails_after = 2
    survivor, _ = share([brief] * COUNT, pair)
    assert isinstance(survivor, LostRank)
    assert str(survivor).endswith("finished trainings are kept: the same command continues")
    assert files(pair[0])


def test_a_training_that_fails_on_one_rank_ends_both_with_its_reason(
    brief, pair, share, monkeypatch
):
    monkeypatch.setattr(pair[1], "_outcome", lambda trial: _raise(RunError("no memory")))
    first, second = share([brief] * COUNT, pair)
    assert (str(first), str(second)) == ("rank 1: no memory", "no memory")


def test_ranks_that_would_compare_something_else_are_refused(protocol, pair, share):
    answers = share([protocol(), protocol("standard", "no-value")], pair)
    assert {str(answer) for answer in answers} == {
        "rank 1 has another setting, text, version or kind of device than rank 0"
    }
    assert all(isinstance(answer, ConfigError) for answer in answers)
    assert not pair[0].done


def test_time_is_planned_for_the_processes_of_all_ranks(pair):
    meeting = Meeting()
    with ThreadPoolExecutor(COUNT) as pool:
        sizes = pool.map(
            lambda rank: DistributedRunner(pair[rank], ThreadRanks(rank, meeting)).size,
            range(COUNT),
        )
        assert list(sizes) == [4, 4]


def _raise(error):
    raise error
