"""The four words that a comparison ends with, and the numbers behind them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What paired differences of loss say of an arm. Positive differences: the arm is worse.

    Attributes:
        word: "better", "worse", "equivalent" (within delta) or "undecided".
        differences: The arm's loss less the control's, seed by seed, in nats per token.
        mean: Their mean.
        interval: Student's t interval of the mean.
        bootstrap: Bootstrap interval of the mean.
        p_value: Two-sided t test of a mean of 0.
        p_holm: The same, adjusted for the number of arms after Holm.
        p_equivalence: Two one-sided tests that the mean lies within delta, adjusted likewise.
        resolves: The smallest true difference, in nats, that as many seeds with this spread would
            find four times out of five.
        seeds_needed: Seeds that would decide, at this mean and spread; None where it is decided.
    """

    word: str
    differences: tuple[float, ...]
    mean: float
    interval: tuple[float, float]
    bootstrap: tuple[float, float]
    p_value: float
    p_holm: float
    p_equivalence: float
    resolves: float
    seeds_needed: int | None
