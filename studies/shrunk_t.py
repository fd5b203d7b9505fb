"""The moderated t with an estimated prior, which the study `horizon` registered.

The variance of n differences is shrunk towards the pooled variance of all differences in the same
world, the more the better these agree (Smyth, 2004, "Linear models and empirical Bayes methods"):

    v = (d0 s0^2 + (n - 1) s^2) / (d0 + n - 1)    t = mean / sqrt(v / n)    with d0 + n - 1 degrees

`prior_of` finds s0^2 and d0 by the mean and the variance of log s^2. A single group of differences
keeps its own variance, and its t is Student's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, log
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64
from scipy import optimize, special

from studies.decisions import Case, Sample, others_of
from studies.t_tests import TTest

_MANY = 1e6  # degrees of freedom with which a t is normal
_NO_SPREAD = 1e-4  # of the median variance: a smaller one is rounding, not spread over seeds


@dataclass(frozen=True, slots=True)
class StudentT(TTest):
    """Student's t, whose p-values hold for normal differences.

    Attributes:
        most: All measured degrees of freedom, an upper limit for the test.
    """

    corrected: bool = False
    most: float = inf

    @property
    def degrees(self) -> float:
        """The degrees of freedom of the variance; so many that t is normal are `_MANY`."""
        return min(self.n - 1 + self.prior, self.most, _MANY)

    def two_sided(self, statistic: float | np.ndarray) -> Float64[np.ndarray, "..."]:
        """Return P(|T_n| >= |T|) of normal differences; 1 for a single difference."""
        return np.minimum(2 * self.one_sided(np.abs(statistic)), 1.0)

    def one_sided(self, statistic: float | np.ndarray) -> Float64[np.ndarray, "..."]:
        """Return P(T_n >= T) of normal differences; 1 for a single difference."""
        reach = np.asarray(statistic, float)
        return np.asarray(special.stdtr(self.degrees, -reach)) if self.n > 1 else np.ones(())

    def critical(self, level: float, sides: int = 2) -> float:
        """Return the T that is exceeded with a probability of `level`."""
        return float(special.stdtrit(self.degrees, 1 - level / sides))


class Variance(NamedTuple):
    """The variance of some differences, and its degrees of freedom."""

    value: float
    df: float


class Prior(NamedTuple):
    """The prior of a variance, s0^2 with d0 degrees of freedom, from a world's differences."""

    value: float = 0.0
    df: float = 0.0
    most: float = inf  # all measured degrees of freedom, an upper limit for the t

    def test(self, n: int, own: float) -> StudentT:
        """Return the test of n differences; a variance without spread stays as it is."""
        if not self.df or own < _NO_SPREAD * self.value:
            return StudentT(n)
        return StudentT(n, self.df, most=self.most)


def prior_of(variances: Sequence[Variance]) -> Prior:
    """Return the prior of variances that were measured in one world; none from a single one."""
    # A variance far below the others is rounding; its logarithm would dominate the average.
    middle = float(np.median([one.value for one in variances])) if variances else 0.0
    shared = [one for one in variances if one.df > 0 and one.value > _NO_SPREAD * middle]
    if len(shared) < 2:
        return Prior()
    df = np.array([one.df for one in shared])
    # E log s^2 = log sigma^2 + digamma(df / 2) - log(df / 2), so this estimates log sigma^2.
    logs = np.array([log(one.value) for one in shared]) - special.digamma(df / 2) + np.log(df / 2)
    # Var log s^2 = trigamma(df / 2) from sampling, and trigamma(d0 / 2) from unequal variances.
    excess = float(logs.var(ddof=1) - special.polygamma(1, df / 2).mean())
    most, centre = float(df.sum()), float(logs.mean())
    if excess <= 0:  # no more spread than equal variances have
        return Prior(float(np.exp(centre)), inf, most)
    # trigamma(d0 / 2) = excess
    half = _inverse_trigamma(excess)
    return Prior(float(np.exp(centre + special.digamma(half) - log(half))), 2 * half, most)


def shrunk_t(cases: Mapping[str, Case]) -> dict[str, Sample]:
    """Sum up the differences of cases for this test, with the variances of their worlds."""
    variances = {name: Variance(c.variance, len(c.differences) - 1.0) for name, c in cases.items()}
    samples: dict[str, Sample] = {}
    for name, case in cases.items():
        prior = prior_of([variances[name], *(variances[o] for o in others_of(name, cases))])
        test = prior.test(len(case.differences), case.variance)
        samples[name] = Sample.of(case.differences, case.tuning, test, prior.value)
    return samples


def _inverse_trigamma(value: float) -> float:
    """Return x with trigamma(x) = value, for positive values."""
    # trigamma falls from infinity to 0, so a value beyond the bracket has the nearer end.
    low, high = 1e-8, 1e8
    if not special.polygamma(1, high) < value < special.polygamma(1, low):
        return low if value > 1 else high
    solution = optimize.root_scalar(
        lambda x: special.polygamma(1, x) - value, bracket=(low, high), method="brentq"
    )
    return float(solution.root)
