"""Estimate a difference from several independent searches for the rates, and say it in a word.

A difference of loss has two random parts: the seed, and the search, because every search chooses
other rates. The mean over seeds of one search has the variance s^2 + tau^2, where s is the standard
error of its seeds and tau the standard deviation between searches.

- One search: a paired t over seeds, n - 1 degrees. It is about the rates of that search.
- Two searches: two means cannot say how far searches lie apart, so tau is given (`between`); s is
  from the variance of all seeds around the mean of their search, n - 2 degrees.
- Three or more: tau by Paule and Mandel (1982), the interval by Hartung and Knapp (2001), at least
  as wide as without their factor; k - 1 degrees for k searches.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.stats import t as student

from mlx_attn.comparison.judging import holm

CONFIDENCE = 0.95

_LARGEST = 1.0  # nats: no two searches lie so far apart


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean difference with its standard error.

    Attributes:
        mean: Nats per token; positive is worse.
        error: Its standard error.
        degrees: Degrees of freedom of Student's law.
        seeds: Number of pairs.
        searches: Number of independent searches for the rates.
    """

    mean: float
    error: float
    degrees: int
    seeds: int
    searches: int

    @property
    def p_value(self) -> float:
        """Probability of a mean as large if the difference is 0."""
        return float(2 * student.sf(abs(self.mean) / self.error, self.degrees))

    def reach(self, confidence: float = CONFIDENCE) -> float:
        """Return half of the interval's length."""
        return float(student.ppf((1 + confidence) / 2, self.degrees)) * self.error

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """Return the interval of the true difference."""
        reach = self.reach(confidence)
        return self.mean - reach, self.mean + reach

    def __str__(self) -> str:
        return f"{self.mean:+.3f} ±{self.reach():.3f}"

    def within(self, margin: float) -> bool:
        """Return True if the 90 % interval lies within the margin (two one-sided tests at 5 %)."""
        low, high = self.interval(2 * CONFIDENCE - 1)
        return -margin < low and high < margin


def estimate(searches: Sequence[Sequence[float]], between: float) -> Estimate:
    """Estimate a difference from the differences by seed of each search.

    Args:
        searches: At least two differences each.
        between: Standard deviation between searches, used for two of them.
    """
    groups = [np.array(one) for one in searches]
    means, errors = _means(groups)
    k, n = len(groups), sum(map(len, groups))
    if k == 2:
        errors = _pooled_errors(groups, means)
    tau = {1: 0.0, 2: between}.get(k, paule_mandel(means, errors))
    weights = 1 / (errors**2 + tau**2)
    mean = float((weights * means).sum() / weights.sum())
    spread = float((weights * (means - mean) ** 2).sum()) / (k - 1) if k > 2 else 1.0
    return Estimate(
        mean=mean,
        error=sqrt(max(1.0, spread) / weights.sum()),
        degrees=k - 1 if k > 2 else n - k,
        seeds=n,
        searches=k,
    )


def paule_mandel(means: np.ndarray, errors: np.ndarray) -> float:
    """Return the standard deviation between searches that makes their scatter the expected one."""

    def excess(variance: float) -> float:
        weights = 1 / (errors**2 + variance)
        mean = (weights * means).sum() / weights.sum()
        return float((weights * (means - mean) ** 2).sum()) - (len(means) - 1)

    if len(means) < 2 or excess(0.0) <= 0:
        return 0.0
    variance: Any = brentq(excess, 0.0, _LARGEST)
    return sqrt(variance)


def between_searches(contrasts: Sequence[Sequence[Sequence[float]]]) -> float:
    """Return the standard deviation between searches, one for many contrasts.

    Its square is the variance of the searches' means minus the part that their seeds explain,
    averaged over contrasts with at least three searches.
    """
    each = [_means([np.array(group) for group in groups]) for groups in contrasts]
    excess = [float(means.var(ddof=1) - (errors**2).mean()) for means, errors in each]
    return sqrt(max(0.0, sum(excess) / len(excess)))


def _means(groups: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of each group and its standard error."""
    means = np.array([group.mean() for group in groups])
    return means, np.array([group.std(ddof=1) / sqrt(len(group)) for group in groups])


def _pooled_errors(groups: Sequence[np.ndarray], means: np.ndarray) -> np.ndarray:
    """Return the standard errors of the means if all seeds have one variance.

    Weights by the variance of three seeds alone would favour the group that is close by chance.
    """
    sizes = np.array([len(group) for group in groups])
    squares = sum(float(((g - m) ** 2).sum()) for g, m in zip(groups, means, strict=True))
    return np.sqrt(squares / (sizes.sum() - len(groups)) / sizes)


def words(estimates: Mapping[str, Estimate], small: Container[str]) -> dict[str, str]:
    """Return the word for each arm of one text and length, one of those of `compare`.

    Better or worse: no difference is refuted with Holm's correction over the arms. The same: the
    arm is among the small ones, whose 90 % interval lies within the margin. As it was registered,
    better and worse come first, while `compare` calls a small difference the same.
    """
    adjusted = holm(np.array([one.p_value for one in estimates.values()]))
    found = dict[str, str]()
    for (name, one), p_holm in zip(estimates.items(), adjusted.tolist(), strict=True):
        if p_holm <= 1 - CONFIDENCE:
            found[name] = "worse" if one.mean > 0 else "better"
        else:
            found[name] = "the same" if name in small else "not known"
    return found
