"""A comparison that ranks share, each a thread here, ends on all of them like that of one alone."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from mlx_attn.compare import runner as joined
from mlx_attn.compare.comparison import ComparisonRun
from mlx_attn.compare.runner import JoinedCrew
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.training.distributed import Distributed, LostRank

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


class InRounds:
    """A crew by the formula, a training a round."""

    def __init__(self, crew):
        self.crew, self.store, self.size, self.way = crew, crew.store, crew.size, crew.way

    def rounds(self, cells, seconds):
        for finished in self.crew(cells):
            yield [finished]


@pytest.fixture
def pair(crews, monkeypatch):
    """A crew for every rank."""
    monkeypatch.setattr(joined, "TICK", 0.001)
    return [crews(f"rank {rank}", noise=0.01) for rank in range(COUNT)]


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
                return conclusion(protocols[rank], JoinedCrew(InRounds(pair[rank]), ranks))
            except (ConfigError, RunError) as error:
                return error
            except KeyboardInterrupt as gone:
                meeting.barrier.abort()
                return gone

        with ThreadPoolExecutor(COUNT) as pool:
            return list(pool.map(one, range(COUNT)))

    return run


def files(crew):
    return {path.name: path.read_text() for path in crew.store.folder.iterdir()}


def test_all_ranks_conclude_what_one_alone_does(protocol, crews, pair, share, conclusion):
    alone = conclusion(protocol(), crews("alone", noise=0.01))
    assert share([protocol()] * COUNT, pair) == [alone] * COUNT


def test_every_store_has_everything_and_nothing_is_trained_twice(brief, pair, share):
    share([brief] * COUNT, pair)
    assert files(pair[0]) == files(pair[1])
    done = [cell.digest for crew in pair for cell in crew.done]
    assert sorted(f"{digest}.json" for digest in done) == sorted(files(pair[0]))
    assert abs(len(pair[0].done) - len(pair[1].done)) <= 3  # one at most in every stage


def test_what_any_rank_has_is_not_trained_again(brief, pair, share):
    for crew in pair:
        crew.fails_after = 3
    share([brief] * COUNT, pair)
    before = set(files(pair[0])) | set(files(pair[1]))
    for crew in pair:
        crew.fails_after, crew.done = float("inf"), []
    share([brief] * COUNT, pair)
    assert before
    assert not before & {f"{cell.digest}.json" for crew in pair for cell in crew.done}
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
    assert str(survivor).endswith("finished trainings are kept: the same command goes on")
    assert files(pair[0])


def test_a_training_that_fails_on_one_rank_ends_both_with_its_reason(
    brief, pair, share, monkeypatch
):
    monkeypatch.setattr(pair[1], "_outcome", lambda cell: _raise(RunError("no memory")))
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
            lambda rank: JoinedCrew(InRounds(pair[rank]), ThreadRanks(rank, meeting)).size,
            range(COUNT),
        )
        assert list(sizes) == [4, 4]


def test_a_comparison_says_how_it_was_trained(protocol, crew):
    assert ComparisonRun(protocol(), crew, {}).versions == {"trained": "by a formula"}


def _raise(error):
    raise error
