"""Trials in a pool of processes, as one mapped step, and shared among ranks."""

import multiprocessing
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from itertools import chain
from typing import Any

import pytest

from mlx_attn.comparison import runner as runner_module
from mlx_attn.comparison.result import TrialResult
from mlx_attn.comparison.run import ComparisonRun
from mlx_attn.comparison.runner import (
    MAX_TOGETHER,
    DistributedRunner,
    Runner,
    grouped,
    make_runner,
)
from mlx_attn.comparison.trial import Diverged, Store, share_of, train_together, train_trial
from mlx_attn.comparison.tuning import TunedArm, trial_for
from mlx_attn.cpu import single_stream
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.files import write_text
from mlx_attn.training import replicas
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


@pytest.fixture
def many(protocol):
    """Two arms, three seeds, two factors of the learning rates."""
    plan = protocol()
    return [
        trial_for(plan, TunedArm(arm, scale), seed)
        for arm in plan.arms
        for seed in range(3)
        for scale in (1.0, 2.0)
    ]


@pytest.fixture
def trial(monkeypatch):
    """A GPU, what a trial of replicas finds there, and how often one was made."""
    found = {"faster": True, "trials": 0}
    monkeypatch.setattr(runner_module, "on_gpu", lambda: True)

    def is_faster(settings, corpus):
        found["trials"] += 1
        return found["faster"]

    monkeypatch.setattr(replicas, "is_faster", is_faster)
    return found


@pytest.fixture
def way(tmp_path, protocol):
    """How a comparison in a directory is trained."""
    plan = protocol()

    def of(together="auto", jobs=1):
        return make_runner(tmp_path, jobs, together, lambda: plan.settings(plan.arms[0])).mode

    return of


def test_trainings_that_differ_in_seed_and_rate_are_together(many):
    batches = grouped(many)
    assert [{trial.arm for trial in batch} for batch in batches] == [{"standard"}, {"no-query"}]
    assert [trial for batch in batches for trial in batch] == many


@pytest.mark.parametrize(("key", "value"), [("steps", 9), ("merged_lr", 0.5), ("batch_size", 2)])
def test_trainings_that_differ_in_more_are_not(many, key, value):
    other = replace(many[0], settings={**many[0].settings, key: value})
    assert grouped([many[0], other]) == [[many[0]], [other]]


def test_not_too_many_are_together(many):
    seeds = range(MAX_TOGETHER + 3)
    alike = [replace(many[0], settings={**many[0].settings, "seed": seed}) for seed in seeds]
    assert [len(batch) for batch in grouped(alike)] == [MAX_TOGETHER, 3]


def test_a_jittered_training_is_alone(many):
    jittered = replace(many[0], jitter=True)
    assert grouped([many[0], jittered]) == [[many[0]], [jittered]]


def test_with_dropout_every_training_is_alone(many):
    noisy = [replace(c, settings={**c.settings, "drop_rate": 0.1}) for c in many]
    assert grouped(noisy) == [[trial] for trial in noisy]


def test_on_a_gpu_a_trial_decides(way, trial):
    assert way() == "as replicas"
    trial["faster"] = False
    assert way() == "apart"


def test_side_by_side_processes_need_no_trial(way, trial):
    assert way(jobs=2) == "apart"
    assert trial["trials"] == 0


def test_on_a_processor_results_are_the_same_bits_without_a_trial(way, trial, monkeypatch):
    monkeypatch.setattr(runner_module, "on_gpu", lambda: False)
    assert way(jobs=1) == "apart"
    assert trial["trials"] == 0


@pytest.mark.parametrize(("together", "expected"), [("on", "as replicas"), ("off", "apart")])
def test_whoever_says_so_gets_it_without_a_trial(way, trial, together, expected):
    assert way(together) == expected
    assert trial["trials"] == 0


@pytest.mark.parametrize(("folder", "kept"), [("trainings", "apart"), ("replicas", "as replicas")])
def test_it_goes_on_as_it_began(way, trial, tmp_path, folder, kept):
    trial["faster"] = kept == "apart"
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "0.json").touch()
    assert way() == kept


def test_both_ways_keep_their_trainings_apart(tmp_path, many):
    one, other = (make_runner(tmp_path, 1, way, lambda: None) for way in ("on", "off"))
    write_text(one.store.path(many[0]), "{}")
    assert other.missing(many[:1]) == many[:1]
    assert one.missing(many[:1]) == []


def test_dropout_together_is_refused(way, shared):
    shared["drop_rate"] = 0.1
    with pytest.raises(ConfigError, match="replicas would share"):
        way("on")


CLOSE = 1e-5


@pytest.fixture
def pair_of_rates(protocol, runner):
    """Two seeds with a learning rate each."""
    plan = ComparisonRun(protocol(), runner, {}).protocol
    choices = [TunedArm(plan.arms[0], scale) for scale in (1.0, 2.0)]
    return [trial_for(plan, choice, seed) for seed, choice in enumerate(choices)]


def course(training):
    """What a training came to, without what depends on the machine."""
    assert isinstance(training, TrialResult)
    points = [(point.step, point.tokens, point.val_loss) for point in training.curve]
    ranks = [tuple(asdict(ranks).values()) for ranks in training.ranks]
    facts = training.seed, training.lr_scale, training.steps, training.tokens, training.val_loss
    return [*facts, *chain(*points), *chain(*ranks)]


def test_replicas_in_one_process_end_like_separate_trainings(
    in_this_process, pair_of_rates, tmp_path
):
    outcomes = dict(Runner(Store(tmp_path / "replicas"), 1, together=True)(pair_of_rates))
    for trial in pair_of_rates:
        assert course(outcomes[trial]) == pytest.approx(course(train_trial(trial)), abs=CLOSE)


def test_one_that_diverges_leaves_the_others(pair_of_rates):
    wild = replace(pair_of_rates[1], settings={**pair_of_rates[1].settings, "lr": 1e30})
    still = [replace(c, settings={**c.settings, "clip": 0.0}) for c in (pair_of_rates[0], wild)]
    outcomes = dict(train_together(still))
    assert isinstance(outcomes[still[0]], TrialResult)
    assert isinstance(outcomes[still[1]], Diverged)


def test_whoever_is_told_to_stop_has_no_result(pair_of_rates):
    assert list(train_together(pair_of_rates, lambda: True)) == []


def test_time_and_memory_are_shared_and_speed_is_that_of_one_alone(pair_of_rates):
    training = train_trial(pair_of_rates[0])
    assert isinstance(training, TrialResult)
    one = share_of(replace(training, seconds=6.0, peak_memory=3000), 3, tok_s=50.0)
    assert (one.seconds, one.peak_memory, one.tok_s) == (2.0, 1000, 50.0)
    assert one.curve[-1].seconds == one.curve[-1].tokens / 50.0


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


def test_a_comparison_says_how_it_was_trained(protocol, runner):
    assert ComparisonRun(protocol(), runner, {}).versions == {"trained": "by a formula"}


def _raise(error):
    raise error
