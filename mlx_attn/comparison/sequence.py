"""Judge ideas one after another against one control, with one rate of error for all of them.

The control is trained with n0 seeds, which serve every idea until one of them is kept; an idea is
looked at after n = 3, 5 and 10 seeds. With the losses of both,

    d = mean(idea) - mean(control)
    e^2 = v / n + v0 / n0            squared standard error, as if no seeds were in pairs
    t = d / e                        Student's law with n - 1 + m degrees of freedom

s^2 is the variance of one training, pooled from the control, which is six pairs of control against
control, and from earlier ideas. v is pooled from the idea's own variance and m lent degrees of
freedom of s^2, since some ideas run wild. v0 is s^2, or the control's own variance if it is larger.

An idea is better if the interval of d at its level lies below 0. All levels add up to ERROR, so
that the chance that any idea is kept that does nothing is at most that, although the control's
error is common to them (Bonferroni); the looks at an idea share its level (Lan and DeMets, 1983).
Where d is not below 0 an idea is dropped. `benchmarks/ideas.py` simulates nights.
"""

from collections.abc import Iterable, Sequence
from math import sqrt
from statistics import fmean
from typing import NamedTuple

import numpy as np
from scipy import special

LOOKS = {3: 0.0, 5: 0.25, 10: 0.75}
"""The seeds after which an idea is judged, and the part of its level that each look spends.

The first one only drops: three seeds do not show how wild an idea is.
"""

CONTROL_SEEDS = 12

ERROR = 0.05
"""The chance that any of the ideas of a ledger that do nothing is kept."""

PLANNED, FIRST_SHARE = 50, 0.9
"""The first PLANNED ideas share this part of ERROR alike, the next ones this part of the rest."""

LENT, WILD = 3, 4.0
"""Degrees of freedom that s^2 lends to an idea's own variance; and how many times s^2 an earlier
idea's variance may be: above, the idea is no measure of the others."""


def variance_of(groups: Iterable[Sequence[float]]) -> float:
    """Return s^2 of the losses of the control and of earlier ideas, in their order."""
    degrees, total = 0, 0.0
    for losses in groups:
        variance = float(np.var(losses, ddof=1))
        if not degrees or variance <= WILD * total / degrees:
            degrees, total = degrees + len(losses) - 1, total + (len(losses) - 1) * variance
    return total / degrees


def level_of(number: int) -> float:
    """Return the part of ERROR that an idea may spend; its number counts from 1."""
    rounds = (number - 1) // PLANNED
    return ERROR * FIRST_SHARE * (1 - FIRST_SHARE) ** rounds / PLANNED


class Look(NamedTuple):
    """An idea judged; a negative difference means that it is better."""

    verdict: str
    is_open: bool  # whether more seeds are of use
    difference: float  # of the mean losses, idea minus control
    interval: tuple[float, float]  # at the level of the look


def look_at(
    idea: Sequence[float],
    control: Sequence[float],
    variance: float,
    level: float,
    margin: float = 0.0,
) -> Look:
    """Judge an idea by its first trainings.

    Args:
        idea: Its losses, as many as a look has.
        control: The control's.
        variance: s^2, from `variance_of`.
        level: The idea's part of the error.
        margin: In nats per token: smaller differences count as none.
    """
    degrees = len(idea) - 1 + LENT
    own = ((len(idea) - 1) * float(np.var(idea, ddof=1)) + LENT * variance) / degrees
    of_control = max(variance, float(np.var(control, ddof=1)))
    error = sqrt(own / len(idea) + of_control / len(control))
    difference, spends = fmean(idea) - fmean(control), LOOKS[len(idea)] * level
    # The first look spends nothing: it has the interval of a whole idea, and keeps no idea.
    reach = error * float(special.stdtrit(degrees, 1 - (spends or level)))
    low, high = difference - reach, difference + reach
    word = "worse" if low > 0 else "not known"
    if spends and -margin < low and high < margin:
        word = "the same"
    elif spends and high < 0:
        word = "better"
    is_open = word == "not known" and difference < 0 and len(idea) < max(LOOKS)
    return Look(word, is_open, difference, (low, high))
