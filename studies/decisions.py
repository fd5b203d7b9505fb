"""Verdicts on paired differences: their words and numbers.

`judge_all` decides by the test "moderated-t" (`t_tests`); a study registered with another test
passes that one. Every verdict also has the word of a second test, which decides nothing:
"worst-of-five", or for studies of another test "moderated-t".

A verdict also depends on the worth of the part, which a reference arm without that part measures
(assay sensitivity, ICH E10, section 1.5): if that is less than `SENSITIVITY` margins, no test can
show that a form without the part does as well, and the word is "insensitive".
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, sqrt
from statistics import mean, stdev

import numpy as np

from mlx_attn.errors import ConfigError
from studies.t_tests import (
    TTest,
    holm,
    skewness_of,
)

SENSITIVITY = 4.0
"""Margins that a part must be worth before a verdict on it means anything."""

MOST_PRIOR, MOST_BORROWED = 8, 2
"""The most degrees of freedom that other runs add to the spread of an arm, and the most of them
that other arms add, whose spread may be another."""

_QUIETEST = 1 / 9
"""Least variance that other arms lend, as a share of the arm's own: they may be much quieter."""

WORDS = {
    "equivalent": "the difference is shown to be smaller than the margin",
    "better": "the loss is lower, whatever the margin",
    "better within the margin": "the loss is lower, by less than the margin",
    "worse within the margin": "the loss is higher, by less than the margin",
    "worse": "the loss is higher, whatever the margin",
    "undecided": "these seeds show neither a difference nor that it is within the margin",
    "insensitive": "the part itself is worth too little here for any verdict on it",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One arm's paired differences of loss, judged. Positive differences: the arm is worse.

    Every number is finite. A single seed cannot show a spread: the word is then "undecided",
    infinite numbers are None, and the p-values are 1.

    Attributes:
        word: One of `WORDS`.
        differences: The arm's loss minus the control's, seed by seed, in nats per token.
        interval: Of the mean, by the test that decides.
        p_value: That the mean is 0; `p_holm`: adjusted for the number of arms.
        p_equivalence: Two one-sided tests that the mean lies within the margin, adjusted likewise.
        tuning_error: Standard error that the choice of learning rates adds.
        share: The mean as a share of the part's worth; None without a reference arm.
        other_word: By "worst-of-five", or by "moderated-t" if a study registered another test.
        df: Degrees of freedom of the variance.
    """

    word: str
    differences: tuple[float, ...]
    mean: float
    interval: tuple[float, float] | None
    p_value: float
    p_holm: float
    p_equivalence: float
    tuning_error: float = 0.0
    share: float | None = None
    other_word: str = ""
    df: float = 0.0


@dataclass(frozen=True, slots=True)
class Sample:
    """Differences seed by seed, summed up, and the test that judges them.

    Attributes:
        sd: The standard deviation of a difference, with the pooled variance.
        tuning: The standard error that tuning adds, the same for every seed.
    """

    test: TTest
    mean: float
    sd: float
    skewness: float = 0.0
    tuning: float = 0.0

    @classmethod
    def of(
        cls,
        differences: Sequence[float],
        tuning: float = 0.0,
        test: TTest | None = None,
        pooled: float = 0.0,
    ) -> "Sample":
        """Compute the sums exactly, so that the order of the differences does not matter."""
        test = test or TTest(len(differences))
        own = stdev(differences) if len(differences) > 1 else 0.0
        sd = sqrt(test.variance(own**2, pooled)) if test.prior else own
        skewness = float(skewness_of(np.sort(np.array(differences)))) if own else 0.0
        return cls(test, mean(differences), sd, skewness, tuning)

    @property
    def n(self) -> int:
        """Number of differences."""
        return self.test.n

    @property
    def error(self) -> float:
        """Standard error of the mean, sqrt(sd^2 / n + tuning^2)."""
        return sqrt(self.sd**2 / self.n + self.tuning**2)

    def t(self, distance: float) -> float:
        """Return a distance in standard errors; infinite or 0 without spread."""
        if self.error == 0:
            return float(np.sign(distance)) * inf if distance else 0.0
        return distance / self.error

    @property
    def skewness_of_mean(self) -> float:
        """Skewness in units of the whole error, whose tuning part is symmetric."""
        of_seeds = self.sd / sqrt(self.n) / self.error if self.error else 0.0
        return self.skewness * of_seeds**3  # a third moment: the cube of the share of the error

    def statistic(self, distance: float) -> float:
        """Return the test's statistic of a distance."""
        t = self.t(distance)
        return float(self.test.statistic(t, self.skewness_of_mean)) if isfinite(t) else t

    def p_difference(self, rounding: float = 0.0) -> float:
        """Return the p-value of mean 0: the largest over means within `rounding` of this one."""
        low, high = self.statistic(self.mean - rounding), self.statistic(self.mean + rounding)
        nearest = 0.0 if low < 0 < high else min(abs(low), abs(high))  # 0 if rounding may hide a 0
        return float(self.test.two_sided(nearest))

    def p_equivalence(self, margin: float, rounding: float = 0.0) -> float:
        """Return the p-value of a mean outside the margin, the largest as above.

        The larger p-value of two one-sided tests (Schuirmann, 1987).
        """
        above = self.statistic(self.mean + margin - rounding)
        below = -self.statistic(self.mean - margin + rounding)
        return float(self.test.one_sided(min(above, below)))

    def interval(self, confidence: float) -> tuple[float, float]:
        """Return the interval that excludes 0 if and only if `p_difference` finds a difference."""
        reach = self.test.critical(1 - confidence)
        # The ends of T become ends of t; skewness makes the two arms of the interval unequal.
        down, up = (self.test.in_errors(end, self.skewness_of_mean) for end in (reach, -reach))
        return self.mean - down * self.error, self.mean - up * self.error


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Paired differences to be judged, and by which measure.

    Attributes:
        differences: The arm's loss minus the control's, seed by seed, in nats per token.
        margin: Differences below it count as none.
        worth: Loss of the reference arm minus the control's; None without a reference arm.
        tuning: Standard error that tuning adds.
        rounding: Largest effect of a rounding of the start: a word must hold for every mean and
            every worth within this distance of the measured ones.
        replicates: Differences between the same two arms that the mean does not use, from tuning:
            several seeds for each pair of rates. Only their spread counts.
        world: Name of the world of the trainings. Cases of one world lend each other their spread;
            cases with "" do not.
    """

    differences: tuple[float, ...]
    margin: float
    worth: float | None = None
    tuning: float = 0.0
    rounding: float = 0.0
    replicates: tuple[tuple[float, ...], ...] = ()
    world: str = ""

    @property
    def variance(self) -> float:
        """Variance of the differences; 0 for one."""
        return stdev(self.differences) ** 2 if len(self.differences) > 1 else 0.0


Test = Callable[[Mapping[str, Case]], dict[str, "Sample"]]
"""A test: sums up the differences of cases, each with the law that its mean is judged by."""


def judge_all(
    cases: Mapping[str, Case | None],
    confidence: float = 0.95,
    sensitivity: float = SENSITIVITY,
    test: "Test | None" = None,
) -> dict[str, Verdict]:
    """Judge all cases; with a probability of at most 1 - confidence is any of them misjudged.

    Two tests of each, that its mean is 0 and that it lies within the margin, are corrected (Holm)
    for all cases.

    Args:
        cases: By name; None for an unfinished case, which gets no verdict and counts in the
            correction with p = 1.
        confidence: Of all words together.
        sensitivity: Margins that a part must be worth.
        test: The test that decides; by default `moderated_t`.

    Raises:
        ConfigError: A difference is not finite, or a margin or the confidence is impossible.
    """
    _check(cases, confidence)
    verdicts = _verdicts(cases, test or moderated_t, confidence)
    others = _verdicts(cases, moderated_t if test else worst_of_five, confidence)
    return {
        name: _with_worth(replace(verdict, other_word=others[name].word), case, sensitivity)
        for name, verdict in verdicts.items()
        if (case := cases[name])
    }


def moderated_t(cases: Mapping[str, Case]) -> dict[str, Sample]:
    """Sum up the differences of cases with the spread of their tuning runs and of other arms."""
    lent = {name: [*_spreads((c.differences, *c.replicates))] for name, c in cases.items()}
    samples: dict[str, Sample] = {}
    for name, case in cases.items():
        borrowed = [spread for other in others_of(name, cases) for spread in lent[other]]
        degrees, pooled = _pooled(case, borrowed)
        test = TTest(len(case.differences), degrees)
        samples[name] = Sample.of(case.differences, case.tuning, test, pooled)
    return samples


def worst_of_five(cases: Mapping[str, Case]) -> dict[str, Sample]:
    """Sum up the differences of cases without any other run."""
    tests = {name: TTest.worst_of_five(len(case.differences)) for name, case in cases.items()}
    return {name: Sample.of(c.differences, c.tuning, tests[name]) for name, c in cases.items()}


def others_of(name: str, cases: Mapping[str, Case]) -> list[str]:
    """Return the other cases of a case's world: only their spread is comparable."""
    world = cases[name].world
    return [other for other, c in cases.items() if other != name and world and c.world == world]


def p_values_of(
    cases: Mapping[str, Case | None], samples: Mapping[str, Sample]
) -> dict[str, tuple[float, float, float]]:
    """Return for each case the p-values of no difference, of it adjusted, of equivalence adjusted.

    The last two are corrected (Holm) for all cases; one that is not finished counts with p = 1.
    """
    p_values, outside = dict.fromkeys(cases, 1.0), dict.fromkeys(cases, 1.0)
    for name, case in cases.items():
        if case:
            p_values[name] = samples[name].p_difference(case.rounding)
            outside[name] = samples[name].p_equivalence(case.margin, case.rounding)
    different, equivalent = holm(p_values), holm(outside)
    return {name: (p_values[name], different[name], equivalent[name]) for name in cases}


def _spreads(groups: Sequence[Sequence[float]]) -> Iterator[tuple[int, float]]:
    """Yield degrees of freedom and variance of each group of differences that has a spread."""
    for group in groups:
        if len(group) > 1:  # sorted, so that the order of the seeds does not matter
            yield len(group) - 1, float(np.var(np.sort(np.array(group)), ddof=1))


def degrees_lent(tuning_seeds: int, arms: int) -> int:
    """Return the degrees of freedom that tuning runs and other arms add to the spread of an arm."""
    of_tuning = min(3 * (tuning_seeds - 1), MOST_PRIOR)  # three groups, see `replicates_of`
    borrowed = min(MOST_BORROWED, MOST_PRIOR - of_tuning) if arms > 1 else 0
    return (of_tuning + borrowed) // 2 * 2  # even, see `_pooled`


def _pooled(case: Case, borrowed: Sequence[tuple[int, float]]) -> tuple[int, float]:
    """Return even degrees of freedom and their mean variance: a case's own runs, then others'."""
    if len(case.differences) < 2:
        return 0, 0.0
    total, prior, least = 0.0, 0, _QUIETEST * case.variance
    of_tuning = [*_spreads(case.replicates)]
    # A variance weighted by its degrees of freedom; both sources together give at most MOST_PRIOR.
    for spreads, most, floor in ((of_tuning, MOST_PRIOR, 0.0), (borrowed, MOST_BORROWED, least)):
        degrees = sum(df for df, _ in spreads)
        taken = min(most, MOST_PRIOR - prior, degrees)
        if taken:
            total += taken * max(sum(df * v for df, v in spreads) / degrees, floor)
        prior += taken
    # Even, because null distributions are simulated with groups of two degrees each.
    return prior // 2 * 2, total / prior if prior else 0.0


def _verdicts(
    cases: Mapping[str, Case | None], test: Test, confidence: float
) -> dict[str, Verdict]:
    """Return the verdicts of one test, their p-values adjusted for all cases."""
    samples = test({name: case for name, case in cases.items() if case})
    p_values = p_values_of(cases, samples)
    level = 1 - confidence
    return {
        name: _verdict(case, samples[name], p_values[name], level)
        for name, case in cases.items()
        if case
    }


def _verdict(case: Case, sample: Sample, p: tuple[float, float, float], level: float) -> Verdict:
    """Return the verdict by its p-values: of no difference, that adjusted, equivalence adjusted."""
    word = word_of(sample.mean, p[1] <= level, p[2] <= level)
    return Verdict(
        word=word,
        differences=case.differences,
        mean=sample.mean,
        interval=sample.interval(1 - level) if sample.n > 1 else None,
        p_value=p[0],
        p_holm=p[1],
        p_equivalence=p[2],
        tuning_error=sample.tuning,
        df=sample.test.degrees,
    )


def _with_worth(verdict: Verdict, case: Case, sensitivity: float) -> Verdict:
    """Return a verdict with its share of the part's worth, or "insensitive"."""
    # The word must hold for every worth within a rounding of the measured one.
    if case.worth is not None and case.worth - case.rounding < sensitivity * case.margin:
        return replace(verdict, word="insensitive", other_word="insensitive")
    return replace(verdict, share=verdict.mean / case.worth) if case.worth else verdict


def _check(cases: Mapping[str, Case | None], confidence: float) -> None:
    for name, case in cases.items():
        if case is None:
            continue
        if not case.differences or not all(map(isfinite, case.differences)):
            raise ConfigError(
                f"the differences of {name} must be one finite number or more: got "
                f"{list(case.differences)}; leave out what diverged"
            )
        if not 0 <= case.margin < inf:
            raise ConfigError(f"delta is in nats per token and not negative: got {case.margin}")
    if not 0.5 <= confidence < 1:
        raise ConfigError(f"confidence is from 0.5 to below 1, such as 0.95: got {confidence}")


def word_of(difference: float, different: bool, equivalent: bool) -> str:
    """Return the word for the results of both tests; the difference's sign is the direction."""
    if not different:
        return "equivalent" if equivalent else "undecided"
    direction = "worse" if difference > 0 else "better"
    return f"{direction} within the margin" if equivalent else direction
