"""The events of a comparison."""

from collections.abc import Generator
from dataclasses import dataclass

from mlx_attn.comparison.plan import Trial
from mlx_attn.comparison.result import Comparison, Tuning
from mlx_attn.comparison.trial import Outcome


@dataclass(frozen=True, slots=True)
class Began:
    """A stage of a comparison begins; `stored` of its trials are finished already.

    `unused` others are in its folder, made with other code of mlx_attn.
    """

    stage: str
    trainings: int
    stored: int
    unused: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """A trial ended; `left` others of its stage are not finished and take about `seconds_left`."""

    trial: Trial
    outcome: Outcome
    left: int
    seconds_left: float


ComparisonEvent = Began | Finished | Tuning | Comparison
"""What a comparison yields; a settled learning rate and the result stand for themselves."""
Events = Generator[ComparisonEvent, None, None]
