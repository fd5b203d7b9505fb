"""What a comparison yields while it runs."""

from dataclasses import dataclass

from mlx_attn.comparison.plan import Trial
from mlx_attn.comparison.result import Comparison, Tuning
from mlx_attn.comparison.trial import Outcome


@dataclass(frozen=True, slots=True)
class Began:
    """A stage of a comparison begins; `stored` of its trials are finished already."""

    stage: str
    trainings: int
    stored: int


@dataclass(frozen=True, slots=True)
class Finished:
    """A trial ended; `left` others of its stage are not finished and take about `seconds_left`."""

    trial: Trial
    outcome: Outcome
    left: int
    seconds_left: float


@dataclass(frozen=True, slots=True)
class Planned:
    """How many seeds the verdict has, and the minutes that the rest is expected to take.

    `resolves` is the minimum detectable effect, in nats per token; None where nothing is known of
    the spread yet.
    """

    seeds: int
    minutes: float
    resolves: float | None


ComparisonEvent = Began | Finished | Tuning | Planned | Comparison
"""What a comparison yields; a settled learning rate and the result stand for themselves."""
