"""What a comparison yields while it runs: events as values, for whoever shows them."""

from dataclasses import dataclass

from mlx_attn.lab.compare.cell import Cell
from mlx_attn.lab.compare.result import Comparison, Tuning
from mlx_attn.lab.compare.store import Outcome


@dataclass(frozen=True, slots=True)
class Began:
    """A stage begins.

    Attributes:
        stage: What it is for.
        trainings: How many it needs.
        stored: How many of them are finished already.
    """

    stage: str
    trainings: int
    stored: int


@dataclass(frozen=True, slots=True)
class Finished:
    """A training ended.

    Attributes:
        cell: What was trained.
        outcome: What came of it.
        left: Trainings of this stage that are not finished.
        seconds_left: An estimate of the time they take.
    """

    cell: Cell
    outcome: Outcome
    left: int
    seconds_left: float


@dataclass(frozen=True, slots=True)
class Tuned:
    """A learning rate is settled."""

    tuning: Tuning


@dataclass(frozen=True, slots=True)
class Planned:
    """How many seeds there is time for, and what they can be expected to resolve.

    Attributes:
        seeds: Of the verdict.
        minutes: That the rest is expected to take.
        resolves: The smallest true difference, in nats per token, that they would find four times
            out of five; None where nothing is known of the spread yet.
    """

    seeds: int
    minutes: float
    resolves: float | None


@dataclass(frozen=True, slots=True)
class Concluded:
    """The end: what was found."""

    comparison: Comparison


Event = Began | Finished | Tuned | Planned | Concluded
