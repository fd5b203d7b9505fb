"""Intervals of a mean of few differences: Student's, and one that does not assume normality.

The usual bootstrap interval, by percentiles, is too short for few seeds: of normal differences it
holds the true mean 84 times in 100 for n = 5. What is used here resamples the t statistic instead
(Efron, 1981) and smooths the resamples (Hesterberg, Unbiasing the Bootstrap, 2004), so that none of
them consists of one value only and has no spread.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import sqrt

import numpy as np
from jaxtyping import Float64, Int64

from mlx_attn.lab.statistics.decisions import Sample, sample
from mlx_attn.lab.statistics.scientific import special

RESAMPLES = 10_000


def student_interval(found: Sample, confidence: float) -> tuple[float, float]:
    """Student's t interval: mean -+ t error, with n - 1 degrees of freedom; needs two seeds."""
    reach = float(special.stdtrit(found.size - 1, (1 + confidence) / 2)) * found.error
    return found.mean - reach, found.mean + reach


def bootstrap_interval(differences: Sequence[float], confidence: float) -> tuple[float, float]:
    """Smoothed bootstrap-t interval of the mean; the same numbers give the same interval.

    A resample draws x* = x_i + z spread / sqrt(n) with z standard normal, whose variance is that of
    the sample, and has t* = (mean* - mean) / spread*. The interval is mean - spread t*, between the
    outer quantiles of t*. It is wider than Student's where the sample is skewed, and lopsided.

    Args:
        differences: At least two.
        confidence: Such as 0.95.
    """
    found = sample(differences)
    if found.spread == 0:
        return found.mean, found.mean
    chosen, noise = _resamples(found.size)
    drawn = (np.sort(differences)[chosen] - found.mean) / found.spread + noise
    t = drawn.mean(1) / drawn.std(1, ddof=1)
    low, high = np.quantile(t, [(1 - confidence) / 2, (1 + confidence) / 2])
    return found.mean - found.spread * float(high), found.mean - found.spread * float(low)


@lru_cache(maxsize=16)
def _resamples(n: int) -> tuple[Int64[np.ndarray, "R n"], Float64[np.ndarray, "R n"]]:
    """Ranks drawn from n sorted values, and what smooths them.

    Each resample has its mirror image, so that swapping the arms mirrors the interval.
    """
    random = np.random.default_rng(n)
    chosen = random.integers(0, n, (RESAMPLES // 2, n))
    noise = random.standard_normal((RESAMPLES // 2, n)) / sqrt(n)
    return np.concatenate([chosen, n - 1 - chosen]), np.concatenate([noise, -noise])
