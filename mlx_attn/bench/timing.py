"""Timing several things in turns, so that a machine that slows down slows all of them alike.

A round runs everything in one order and then in the opposite one, A B C C B A, which takes away
what changes evenly during the round. Ratios are formed within a round and only then summarised.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

Name = TypeVar("Name")
Subject = Callable[[], object]
"""Does what is to be timed, once, and waits until it is done."""

SHORTEST = 0.02
"""Seconds that one turn lasts at least: quicker things are repeated."""
FEWEST_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Spread:
    """A median with the quartiles beside it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, numbers: Sequence[float]) -> "Spread":
        """The median and quartiles of at least one number."""
        if len(numbers) == 1:
            return cls(numbers[0], numbers[0], numbers[0])
        low, median, high = statistics.quantiles(numbers, n=4, method="inclusive")
        return cls(median, low, high)

    def inverse(self, numerator: float = 1.0) -> "Spread":
        """What `numerator` is divided by each of them: seconds become a speed."""
        return Spread(numerator / self.median, numerator / self.high, numerator / self.low)


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds for doing something once: one number a round, the mean of its two turns."""

    seconds: tuple[float, ...]

    @property
    def spread(self) -> Spread:
        """Median and quartiles over the rounds."""
        return Spread.of(self.seconds)

    def over(self, other: "Timing") -> Spread:
        """This one's time divided by the other's, round by round; both from one measurement."""
        pairs = zip(self.seconds, other.seconds, strict=True)
        return Spread.of([mine / its for mine, its in pairs])


def turns(names: Sequence[Name]) -> list[Name]:
    """The order of one round: A B C C B A."""
    return [*names, *reversed(names)]


def in_turns(
    subjects: Mapping[Name, Subject], seconds: float, fewest_rounds: int = FEWEST_ROUNDS
) -> dict[Name, Timing]:
    """Time all subjects in rounds until the time is over.

    Args:
        subjects: What is timed, by name. Each is run twice beforehand: the first run may compile or
            allocate, and the second says how often a short one is repeated in a turn.
        seconds: About how long to measure.
        fewest_rounds: Rounds that are measured even if that takes longer.
    """
    repeats = {name: _repeats(subject) for name, subject in subjects.items()}
    rounds: dict[Name, list[float]] = {name: [] for name in subjects}
    for _ in _rounds(seconds, fewest_rounds):
        elapsed = dict.fromkeys(subjects, 0.0)
        for name in turns(list(subjects)):
            elapsed[name] += _timed(subjects[name], repeats[name])
        for name, both in elapsed.items():
            rounds[name].append(both / 2)
    return {name: Timing(tuple(measured)) for name, measured in rounds.items()}


def _rounds(seconds: float, fewest: int) -> Iterator[int]:
    """Count rounds while there is time for one more."""
    began, n = time.perf_counter(), 0
    while n < fewest or (time.perf_counter() - began) * (n + 1) / n < seconds:
        yield n
        n += 1


def _repeats(subject: Subject) -> int:
    subject()
    return max(1, math.ceil(SHORTEST / _timed(subject, 1)))


def _timed(subject: Subject, repeats: int) -> float:
    """Seconds for one run."""
    began = time.perf_counter()
    for _ in range(repeats):
        subject()
    return (time.perf_counter() - began) / repeats
