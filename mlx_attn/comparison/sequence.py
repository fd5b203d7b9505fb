"""Judge ideas one after another against one control, with one rate of error for all of them.

The control is trained with CONTROL_SEEDS seeds, which serve every idea until one of them is kept;
an idea is looked at after n = 3, 5 and 10 seeds. With the differences of their losses, in pairs,

    d = mean(idea - control)
    t = d / sqrt(v / n)      Student's law with n - 1 + m degrees of freedom

v is pooled from the variance of these differences and m lent degrees of freedom of s^2, since few
seeds do not show how wild an idea is; s^2 is pooled from the control's seeds against each other,
and from earlier ideas.

An idea is better if the interval of d at its level lies below 0. All levels add up to ERROR, so
that the chance that any idea is kept that does nothing is at most that, although the control's
error is common to them (Bonferroni); the looks at an idea share its level (Lan and DeMets, 1983).
So it is for ideas that vary about as the control does: s^2 makes a much wilder one look steadier.
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

LENT, WILD = 2, 4.0
"""Degrees of freedom that s^2 lends to an idea's own variance; and how many times s^2 an earlier
idea's variance may be: above, the idea is no measure of the others."""


def variance_of(control: Sequence[float], earlier: Iterable[Sequence[float]]) -> float:
    """Return s^2 of the control's losses and of the differences of earlier ideas, in their order.

    Two independent losses differ by twice the variance of one.
    """
    degrees = len(control) - 1
    total = 2 * degrees * float(np.var(control, ddof=1))
    for differences in earlier:
        variance = float(np.var(differences, ddof=1))
        if variance <= WILD * total / degrees:
            added = len(differences) - 1
            degrees, total = degrees + added, total + added * variance
    return total / degrees


def level_of(number: int) -> float:
    """Return the part of ERROR that an idea may spend; its number counts from 1."""
    rounds = (number - 1) // PLANNED
    return ERROR * FIRST_SHARE * (1 - FIRST_SHARE) ** rounds / PLANNED


class Look(NamedTuple):
    """An idea judged; a negative difference means that it is better."""

    verdict: str
    is_open: bool  # whether more seeds are of use
    difference: float  # mean, idea minus control
    interval: tuple[float, float]  # at the level of the look


def look_at(
    differences: Sequence[float], variance: float, level: float, margin: float = 0.0
) -> Look:
    """Judge an idea by its first trainings.

    Args:
        differences: Its losses minus the control's, seed by seed, as many as a look has.
        variance: s^2, from `variance_of`.
        level: The idea's part of the error.
        margin: In nats per token: smaller differences count as none.
    """
    n, difference, spends = len(differences), fmean(differences), LOOKS[len(differences)] * level
    degrees = n - 1 + LENT
    pooled = ((n - 1) * float(np.var(differences, ddof=1)) + LENT * variance) / degrees
    # The first look spends nothing: it has the interval of a whole idea, and keeps no idea.
    # The law's lower tail tells levels apart that 1 - level does not, after hundreds of ideas.
    reach = -sqrt(pooled / n) * float(special.stdtrit(degrees, spends or level))
    low, high = difference - reach, difference + reach
    word = "worse" if low > 0 else "not known"
    if spends and -margin < low and high < margin:
        word = "the same"
    elif spends and high < 0:
        word = "better"
    is_open = word == "not known" and difference < 0 and n < max(LOOKS)
    return Look(word, is_open, difference, (low, high))
