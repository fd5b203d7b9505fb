"""Seeds and what they can find: the power of the tests that decide (see `decisions`).

A t test's power is that of the noncentral t law, written as a mean over the law of the observed
spread; the same mean gives the power of the two one-sided tests, which has no law of its own.
"""

from bisect import bisect_left
from functools import lru_cache
from math import sqrt

import numpy as np
from jaxtyping import Float64

from mlx_attn.errors import ConfigError
from mlx_attn.lab.statistics.scientific import optimize, special

MOST_SEEDS = 1000
"""Where `seeds_for` stops looking."""

_NODES = 500


def resolvable(
    sd: float, n: int, confidence: float = 0.95, power: float = 0.8, arms: int = 1
) -> float:
    """The smallest true difference that a paired two-sided t test finds, in the unit of sd.

    Args:
        sd: The standard deviation of the paired differences.
        n: Seeds.
        confidence: Of the verdict.
        power: How often such a difference is to be found.
        arms: How many arms are judged together; Holm's strictest level is (1 - confidence) / arms.

    Raises:
        ConfigError: n is less than 2, or confidence or power is no probability that can be asked.
    """
    if n < 2:
        raise ConfigError(f"a spread needs at least 2 seeds: got {n}")
    return sd * _effect(n, _level(confidence, power, arms), power)


def seeds_for(
    sd: float,
    difference: float,
    delta: float = 0.0,
    confidence: float = 0.95,
    power: float = 0.8,
    arms: int = 1,
) -> int:
    """The fewest seeds that decide: a difference is found, or proved to be smaller than delta.

    Args:
        sd: The standard deviation of the paired differences.
        difference: The true difference, in the unit of sd.
        delta: Differences smaller than this count as none.
        confidence: Of the verdict.
        power: How often the verdict is to be found.
        arms: How many arms are judged together.

    Returns:
        From 2 to MOST_SEEDS, which stands for as many or more.

    Raises:
        ConfigError: confidence or power is no probability that can be asked.
    """
    level = _level(confidence, power, arms)
    if sd == 0:
        return 2 if difference or delta else MOST_SEEDS

    def chance(n: int) -> float:
        found = chance_of_difference(difference / sd, n, level)
        return max(found, chance_of_equivalence(difference / sd, delta / sd, n, level))

    return 2 + bisect_left(range(2, MOST_SEEDS), power, key=chance)


def chance_of_difference(effect: float, n: int, level: float) -> float:
    """How often a two-sided t test of that level finds a difference of so many deviations."""
    critical = special.stdtrit(n - 1, 1 - level / 2) * _spreads(n)
    shift = effect * sqrt(n)
    return float(np.mean(special.ndtr(shift - critical) + special.ndtr(-shift - critical)))


def chance_of_equivalence(effect: float, margin: float, n: int, level: float) -> float:
    """How often two one-sided tests prove such a difference smaller than the margin, likewise."""
    reach = margin * sqrt(n) - special.stdtrit(n - 1, 1 - level) * _spreads(n)
    shift = effect * sqrt(n)
    inside = special.ndtr(reach - shift) - special.ndtr(-reach - shift)
    return float(np.mean(np.maximum(inside, 0)))


@lru_cache(maxsize=256)
def _effect(n: int, level: float, power: float) -> float:
    """The difference, in standard deviations, that is found with that power."""
    largest = (special.stdtrit(n - 1, 1 - level / 2) * _spreads(n)[-1] + 10) / sqrt(n)
    found = optimize.root_scalar(
        lambda effect: chance_of_difference(effect, n, level) - power, bracket=(0, largest)
    )
    return float(found.root)


@lru_cache(maxsize=256)
def _spreads(n: int) -> Float64[np.ndarray, "nodes"]:
    """Equally likely observed spreads of n differences whose true spread is 1: sqrt(chi2 / df)."""
    likelihoods = (np.arange(_NODES) + 0.5) / _NODES
    return np.sqrt(2 * special.gammaincinv((n - 1) / 2, likelihoods) / (n - 1))


def _level(confidence: float, power: float, arms: int) -> float:
    if not 0 < 1 - confidence < power < 1:
        raise ConfigError(
            "confidence and power lie between 0 and 1, power above 1 - confidence: "
            f"got {confidence} and {power}"
        )
    return (1 - confidence) / arms
