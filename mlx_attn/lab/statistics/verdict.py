"""The four words that a comparison ends with, and the numbers behind them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What paired differences of loss say of an arm. Positive differences: the arm is worse.

    Every number is finite. One seed has no spread: then the word is "undecided", what would be
    infinite is None, the p-values are 1, and seeds_needed is 2, the fewest that can be judged.

    Attributes:
        word: "better", "worse", "equivalent" (within delta) or "undecided".
        differences: The arm's loss less the control's, seed by seed, in nats per token.
        mean: Their mean.
        interval: Student's t interval of the mean; None of one seed.
        bootstrap: Bootstrap interval of the mean; None of one seed.
        p_value: Two-sided t test of a mean of 0.
        p_holm: The same, adjusted for the number of arms after Holm.
        p_equivalence: Two one-sided tests that the mean lies within delta, adjusted likewise.
        resolves: The smallest true difference, in nats, that as many seeds with this spread would
            find four times out of five; None of one seed.
        seeds_needed: Seeds that would decide four times out of five, were this the true mean and
            spread; 1000 stands for 1000 or more; None where it is decided.
    """

    word: str
    differences: tuple[float, ...]
    mean: float
    interval: tuple[float, float] | None
    bootstrap: tuple[float, float] | None
    p_value: float
    p_holm: float
    p_equivalence: float
    resolves: float | None
    seeds_needed: int | None
