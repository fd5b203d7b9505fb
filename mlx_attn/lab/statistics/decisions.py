"""From paired differences to a word: Student's t test, two one-sided tests, Holm's adjustment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import mean, stdev

import numpy as np

from mlx_attn.lab.statistics.scientific import special


@dataclass(frozen=True, slots=True)
class Sample:
    """Paired differences, summed up.

    Attributes:
        size: How many.
        mean: In the unit of the differences.
        spread: Their standard deviation with n - 1 degrees of freedom; 0 of one.
    """

    size: int
    mean: float
    spread: float

    @property
    def error(self) -> float:
        """The standard error of the mean, spread / sqrt(n)."""
        return self.spread / sqrt(self.size)


@dataclass(frozen=True, slots=True)
class Decision:
    """A word and the p-values that it follows from; those with Holm's adjustment as marked.

    Attributes:
        word: "better", "worse", "equivalent" or "undecided".
        p_value: Two-sided t test of a mean of 0, alone.
        p_holm: The same, adjusted.
        p_equivalence: Two one-sided tests that the mean lies within delta, adjusted.
    """

    word: str
    p_value: float
    p_holm: float
    p_equivalence: float


def sample(differences: Sequence[float]) -> Sample:
    """The summary of at least one difference, rounded once: their order does not matter."""
    spread = stdev(differences) if len(differences) > 1 else 0.0
    return Sample(len(differences), mean(differences), spread)


def decide(samples: Mapping[str, Sample], delta: float, confidence: float) -> dict[str, Decision]:
    """The word on every arm.

    Equivalence comes first: a difference that is proved to be smaller than delta is too small to
    matter, even where it is proved not to be zero. Each of the two families of tests errs about any
    of its arms with a probability of at most 1 - confidence.

    Args:
        samples: What is known of each arm.
        delta: Differences smaller than this count as none.
        confidence: Such as 0.95.
    """
    alone = {arm: difference_p(found) for arm, found in samples.items()}
    different = holm(alone)
    equivalent = holm({arm: equivalence_p(found, delta) for arm, found in samples.items()})
    level = 1 - confidence
    return {
        arm: Decision(
            word=_word(found.mean, different[arm] <= level, equivalent[arm] <= level),
            p_value=alone[arm],
            p_holm=different[arm],
            p_equivalence=equivalent[arm],
        )
        for arm, found in samples.items()
    }


def difference_p(found: Sample) -> float:
    """Two-sided paired t test of a mean of 0: P(|T| >= |mean| / error) with n - 1 degrees."""
    return 2 * _beyond(found, abs(found.mean))


def equivalence_p(found: Sample, delta: float) -> float:
    """Two one-sided tests (Schuirmann, 1987): the larger p-value of mean > -delta, mean < delta.

    P(T >= (delta - |mean|) / error), because the bound that is nearer decides.
    """
    return _beyond(found, delta - abs(found.mean)) if found.size > 1 else 1.0


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """P-values adjusted for their number (Holm, 1979): families err as seldom as a single test.

    The i-th smallest of m becomes the largest of (m - j + 1) p_j over j <= i, at most 1.
    """
    names = sorted(p_values, key=lambda name: p_values[name])
    raised = [p_values[name] * (len(names) - place) for place, name in enumerate(names)]
    adjusted = dict(zip(names, np.minimum(np.maximum.accumulate(raised), 1).tolist(), strict=True))
    return {name: adjusted[name] for name in p_values}


def _word(mean_difference: float, different: bool, equivalent: bool) -> str:
    if equivalent:
        return "equivalent"
    if different:
        return "worse" if mean_difference > 0 else "better"
    return "undecided"


def _beyond(found: Sample, distance: float) -> float:
    """P(T >= distance / error); differences without any spread leave no doubt about it."""
    if found.size < 2:
        return 0.5
    if found.error == 0:
        return 0.5 - 0.5 * float(np.sign(distance))
    return float(special.stdtr(found.size - 1, -distance / found.error))
