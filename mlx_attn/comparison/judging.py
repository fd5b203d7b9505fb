"""Judge paired differences of loss: Student's t with a few lent degrees of freedom.

An arm and the control are trained with the same n seeds; d_i is the arm's loss minus the control's
with seed i, in nats per token. With few seeds their variance is hardly known, so other pairs lend
theirs: v is a variance of m degrees of freedom, from pairs that the mean does not use.

    s^2 = ((n - 1) var(d) + m v) / (n - 1 + m)      variance of one difference
    e^2 = s^2 / n + s^2 / (4 k)                     squared standard error of the mean
    t   = mean(d) / e                               Student's law, n - 1 + m degrees of freedom

m is fixed and not estimated as by Smyth (2004): an estimate from few arms fails exactly if some
runs go wrong. The term with k is the error of tuning: k other tuning seeds might have chosen other
learning rates.

Two questions are asked of every arm. Is its mean 0? The p-values are corrected for the number of
arms (Holm, 1979). Is it within the margin? Yes if the interval of twice the error probability, 90 %
instead of 95 %, lies inside: two one-sided tests (Schuirmann, 1987).

A task is solved or not. There the number of trainings that solve it decides, by Fisher's exact
test. `benchmarks/judging.py` simulates how often all of this is wrong, and how much it finds.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from statistics import fmean, median
from typing import Any

import numpy as np
from jaxtyping import Float64
from scipy import special, stats

WORDS = ("better", "worse", "the same", "not known")
"""Better has a lower loss. A difference within the margin counts as none, even if it is not 0."""

MOST_OF_TUNING, OF_OTHER_ARMS = 8, 2
"""The most degrees of freedom that an arm's tuning pairs lend, and those that all other arms lend
together, whose spread may be another."""

TUNING_SHARE = 1 / 4
"""The squared error of tuning, times k / s^2. Repeated searches over factors 2 apart scatter by
0.01 to 0.24, depending on how sharp the best factor is; a better one in between is not part of it.
"""

MOST_OF_WORTH = 1 / 2
"""The largest margin, as a share of what the part in question is worth (FDA, Non-inferiority
clinical trials, 2016): a form that gives away more than half of it is not the same."""

POWER, MOST_SEEDS = 0.8, 1000
"""The probability with which `Sample.seeds_needed` decide, and the most that it looks for."""

Interval = tuple[float, float]
Spread = tuple[int, Any]
"""Degrees of freedom and their variance, or an array of variances."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """An arm against the control: paired differences of loss, in nats per token."""

    differences: tuple[float, ...]  # seed by seed
    tuning: tuple[tuple[float, ...], ...] = ()  # groups over the tuning seeds, for their spread
    tuning_seeds: int = 0  # by which the learning rates were chosen; 0 if they were not tuned


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """An arm judged; positive differences mean that it is worse.

    A single seed has no spread: "not known", without intervals, and with a p-value of 1.
    """

    word: str  # one of `WORDS`
    differences: tuple[float, ...]  # as in the contrast
    mean: float
    interval: Interval | None  # of the mean, with the confidence of the comparison
    inner_interval: Interval | None  # with twice the error probability, see the module
    p_holm: float  # that the mean is 0, corrected for the number of arms
    margin: float  # differences below it count as none
    degrees: int  # of freedom, those that other pairs lend included
    lent: int  # degrees of freedom that other pairs lend
    # Seeds with which a new comparison would decide four times out of five, if this were the true
    # mean and spread; MOST_SEEDS are as many or more, None if decided.
    seeds_needed: int | None
    share: float | None  # the mean as a share of the part's worth; None without a reference arm


def pooled(*spreads: Spread) -> Spread:
    """Return the sum of degrees of freedom, and the mean variance that they weight."""
    degrees = sum(each for each, _ in spreads)
    weighted = sum(each * variance for each, variance in spreads)
    return degrees, weighted / degrees if degrees else 0.0


def _spread_of(groups: Iterable[Sequence[float]]) -> Spread:
    """Return the pooled spread of groups, each around its own mean."""
    return pooled(*((len(g) - 1, float(np.var(g, ddof=1))) for g in groups if len(g) > 1))


@dataclass(frozen=True, slots=True)
class Sample:
    """Differences summed up: their mean, and the pooled variance of one of them.

    Mean and variance may be arrays, of many samples of one size.
    """

    seeds: int
    mean: Any
    variance: Any
    lent: int  # degrees of freedom from other pairs
    tuning_seeds: int = 0

    @classmethod
    def of(cls, contrast: Contrast, others: Iterable[Contrast]) -> "Sample":
        """Pool the variances of an arm's differences, of its tuning pairs and of other arms."""
        pairs_of_others = (group for each in others for group in (each.differences, *each.tuning))
        tuned, of_tuned = _spread_of(contrast.tuning)
        other, of_other = _spread_of(pairs_of_others)
        lent = (min(tuned, MOST_OF_TUNING), of_tuned), (min(other, OF_OTHER_ARMS), of_other)
        degrees, variance = pooled(_spread_of([contrast.differences]), *lent)
        seeds, mean = len(contrast.differences), fmean(contrast.differences)
        return cls(seeds, mean, variance, degrees - (seeds - 1), contrast.tuning_seeds)

    @property
    def degrees(self) -> int:
        """Degrees of freedom of the variance."""
        return self.seeds - 1 + self.lent

    @property
    def error(self) -> Any:
        """Standard error of the mean, the error of tuning included."""
        of_tuning = TUNING_SHARE / self.tuning_seeds if self.tuning_seeds else 0.0
        return np.sqrt(self.variance * (1 / self.seeds + of_tuning))

    @property
    def p_value(self) -> Any:
        """That the true mean is 0, by two-sided t; 1 for a single seed."""
        if self.seeds < 2:
            return 1.0
        with np.errstate(divide="ignore", invalid="ignore"):
            t = np.abs(self.mean) / self.error
        # Without any spread the mean is certain: 0 / 0 means no difference.
        return 2 * special.stdtr(self.degrees, -np.nan_to_num(t, nan=0.0, posinf=inf))

    def interval(self, confidence: float) -> Interval | None:
        """Return the interval of the mean; None for a single seed."""
        if self.seeds < 2:
            return None
        reach = float(special.stdtrit(self.degrees, (1 + confidence) / 2) * self.error)
        return self.mean - reach, self.mean + reach

    def seeds_needed(self, margin: float, level: float, level_of_one: float) -> int:
        """Return the fewest seeds, more than these, that decide with a probability of POWER.

        Args:
            margin: In nats per token.
            level: The p-value that shows a difference, corrected for all arms.
            level_of_one: That of each one-sided test of "the same".
        """

        def power(seeds: int) -> float:
            planned = replace(self, seeds=seeds)
            # Beyond the other threshold, on the wrong side, lies next to nothing.
            different = planned.power(abs(self.mean), level / 2)
            above = planned.power(margin + self.mean, level_of_one)
            below = planned.power(margin - self.mean, level_of_one)
            # Both one-sided tests reject at least as often as this.
            return max(different, above + below - 1)

        # Power rises with the number of seeds, so a bisection finds the first that has enough.
        candidates = range(self.seeds + 1, MOST_SEEDS)
        return self.seeds + 1 + bisect_left(candidates, POWER, key=power)

    def power(self, distance: float, level: float) -> float:
        """Return how often a one-sided test finds a true distance: the noncentral t."""
        if not self.error:
            return float(distance > 0)
        threshold = special.stdtrit(self.degrees, 1 - level)
        return 1 - float(special.nctdtr(self.degrees, distance / self.error, threshold))


def holm(p_values: Float64[np.ndarray, "... arms"]) -> Float64[np.ndarray, "... arms"]:
    """Correct p-values for their number, so that all together err as rarely as one (Holm, 1979)."""
    order, arms = np.argsort(p_values, axis=-1), p_values.shape[-1]
    # The smallest of m is multiplied by m, the next by m - 1, ..., the largest by 1,
    raised = np.take_along_axis(p_values, order, -1) * np.arange(arms, 0, -1)
    # and none is below the corrected value of a smaller one.
    corrected = np.empty_like(p_values)
    np.put_along_axis(corrected, order, np.maximum.accumulate(raised, axis=-1), -1)
    return np.minimum(corrected, 1.0)


def judge(
    contrasts: Mapping[str, Contrast],
    margin: float,
    confidence: float = 0.95,
    worth: float | None = None,
) -> dict[str, Verdict]:
    """Judge all arms of a comparison.

    Args:
        contrasts: By arm.
        margin: In nats per token: smaller differences count as none.
        confidence: That no arm is called better or worse falsely, of all together.
        worth: The mean difference of the reference arm, which lacks the part in question; it caps
            the margin, see `MOST_OF_WORTH`.
    """
    if worth is not None:
        margin = min(margin, max(0.0, MOST_OF_WORTH * worth))
    samples = [
        Sample.of(contrast, (one for other, one in contrasts.items() if other != arm))
        for arm, contrast in contrasts.items()
    ]
    level, p_values = 1 - confidence, holm(np.array([sample.p_value for sample in samples]))
    verdicts: dict[str, Verdict] = {}
    for arm, sample, p_holm in zip(contrasts, samples, p_values.tolist(), strict=True):
        word, needed = _decision(sample, p_holm, margin, level, len(samples))
        verdicts[arm] = Verdict(
            word=word,
            differences=contrasts[arm].differences,
            mean=sample.mean,
            interval=sample.interval(confidence),
            inner_interval=sample.interval(1 - 2 * level),
            p_holm=p_holm,
            margin=margin,
            degrees=sample.degrees,
            lent=sample.lent,
            seeds_needed=needed,
            share=sample.mean / worth if worth else None,
        )
    return verdicts


def _decision(
    sample: Sample, p_holm: float, margin: float, level: float, arms: int
) -> tuple[str, int | None]:
    """Return the word on a sample, and the seeds that would decide if these do not."""
    inner = sample.interval(1 - 2 * level)
    # "The same" comes first, because such a difference is small.
    if inner and -margin < inner[0] and inner[1] < margin:
        return "the same", None
    if p_holm <= level:
        return ("worse" if sample.mean > 0 else "better"), None
    return "not known", sample.seeds_needed(margin, level / arms, level)


@dataclass(frozen=True, slots=True, kw_only=True)
class Solving:
    """How often and how soon an arm solves a task."""

    solved: int  # of its trainings
    runs: int  # its trainings
    median_steps: float | None  # until it was solved; None unless more than half solved it
    # "better" if more of them solve it than of the control's, "worse" if fewer, or "not known"; ""
    # for the control.
    word: str = ""
    p_holm: float | None = None  # of Fisher's test against the control; None for the control


def judge_solving(
    steps: Mapping[str, Sequence[int | None]], confidence: float = 0.95
) -> dict[str, Solving]:
    """Judge how often all arms solve a task, against the first one.

    Args:
        steps: By arm, the steps after which each training had solved it; None if it never did.
        confidence: That no arm is called better or worse falsely, of all together.
    """
    control, *others = (_solving(each) for each in steps.values())
    tables = [[[s.solved, s.runs - s.solved] for s in (arm, control)] for arm in others]
    p_values = np.array([stats.fisher_exact(table)[1] for table in tables])
    judged = [control]
    for arm, p_holm in zip(others, holm(p_values).tolist(), strict=True):
        more = arm.solved * control.runs > control.solved * arm.runs
        word = ("better" if more else "worse") if p_holm <= 1 - confidence else "not known"
        judged.append(replace(arm, word=word, p_holm=p_holm))
    return dict(zip(steps, judged, strict=True))


def _solving(steps: Sequence[int | None]) -> Solving:
    half = median(inf if each is None else each for each in steps)
    solved = sum(each is not None for each in steps)
    return Solving(solved=solved, runs=len(steps), median_steps=half if isfinite(half) else None)
