"""Trainings shared between ranks: processes on several machines that all do the same comparison.

Every rank has a crew and a store of its own and trains its share. All speak once in a while, at the
same time: so every store has all that is finished, all conclude the same, and a rank that is gone
is missed at once rather than at the end of a stage.
"""

import hashlib
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

from mlx_attn.errors import RunError
from mlx_attn.lab.compare.cell import Cell
from mlx_attn.lab.compare.crew import Finished
from mlx_attn.lab.compare.store import Store
from mlx_attn.training.ranks import LostRank, Ranks

TICK = 0.5
"""Seconds between one exchange and the next."""

Working = Generator[Sequence[Finished], None, None]


@runtime_checkable
class Rounds(Protocol):
    """Whoever trains on one rank, and says from time to time what is finished, such as a `Crew`."""

    store: Store
    size: int
    way: str

    def rounds(self, cells: Sequence[Cell], seconds: float) -> Working:
        """Do trainings, and yield every so many seconds what was finished meanwhile."""
        ...


class JoinedCrew:
    """The crews of all ranks.

    Args:
        crew: This rank's.
        ranks: All of them, which do the same comparison.

    Attributes:
        size: Processes at once, on all ranks together.
    """

    def __init__(self, crew: Rounds, ranks: Ranks):
        self.store, self.way = crew.store, crew.way
        self.size = sum(ranks.gather(crew.size))
        self._crew, self._ranks = crew, ranks

    def missing(self, cells: Iterable[Cell]) -> list[Cell]:
        """What no rank has finished; what some have is in every rank's store afterwards.

        Where two have other records of the same training, that of the lower rank counts.

        Raises:
            ConfigError: The ranks do not want the same trainings.
            LostRank: A rank is gone.
        """
        wanted = {cell.digest: cell for cell in cells}
        with _keeping():
            self._ranks.check_same("setting, text, version or kind of device", list(wanted))
            by_rank = self._ranks.gather([self._mark(cell) for cell in wanted.values()])
            marks = dict(zip(wanted, zip(*by_rank, strict=True), strict=True))
            due = [digest for digest, of_ranks in marks.items() if len({*of_ranks}) > 1]
            mine = [digest for digest in due if _giver(marks[digest]) == self._ranks.rank]
            for texts in self._ranks.gather({d: self.store.text(wanted[d]) for d in mine}):
                self._keep(texts, wanted)
        return [wanted[digest] for digest, of_ranks in marks.items() if not any(of_ranks)]

    def __call__(self, cells: Iterable[Cell]) -> Generator[Finished, None, None]:
        """Do this rank's share of what is missing, and yield what is finished on any rank.

        Raises:
            RunError: A process ended without a result, on any rank.
            LostRank: A rank is gone; what is finished is kept by the rank that trained it.
        """
        left = {cell.digest: cell for cell in cells}
        working = self._crew.rounds(self._ranks.share([*left.values()]), TICK)
        try:
            while left:
                for digest in self._news(working, left):
                    cell = left.pop(digest)
                    yield cell, self.store[cell]
        finally:
            working.close()

    def _news(self, working: Working, wanted: Mapping[str, Cell]) -> list[str]:
        """Digests of what was finished since the last time, on any rank; all have it now."""
        own = self._own_news(working)
        with _keeping():
            news = self._ranks.gather(own)
        for rank, (texts, failure) in enumerate(news):
            if rank != self._ranks.rank:
                self._keep(texts, wanted)
                failure = failure and f"rank {rank}: {failure}"
            if failure:
                raise RunError(failure)
        return [digest for texts, _ in news for digest in texts]

    def _own_news(self, working: Working) -> tuple[dict[str, str], str]:
        """What was finished here, as records, and why no more can be."""
        try:
            finished = next(working, None)
        except RunError as error:
            return {}, str(error)
        if finished is None:
            # The others are still at it, and hear nothing until it is time.
            time.sleep(TICK)
        return {cell.digest: self.store.text(cell) for cell, _ in finished or ()}, ""

    def _mark(self, cell: Cell) -> str:
        """The same for the same record; "" where there is none."""
        if cell not in self.store:
            return ""
        return hashlib.blake2b(self.store.text(cell).encode(), digest_size=12).hexdigest()

    def _keep(self, texts: Mapping[str, str], cells: Mapping[str, Cell]) -> None:
        for digest, text in texts.items():
            self.store.keep(cells[digest], text)


def _giver(marks: Sequence[str]) -> int:
    """The lowest rank that has a record."""
    return next(rank for rank, mark in enumerate(marks) if mark)


@contextmanager
def _keeping() -> Iterator[None]:
    """Wherever ranks speak: says what there is to go on from when one is gone."""
    try:
        yield
    except LostRank as lost:
        raise LostRank(f"{lost}; finished trainings are kept: the same command goes on") from lost
