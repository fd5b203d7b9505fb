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
from functools import partial
from math import inf, isfinite, sqrt
from statistics import fmean, median
from typing import Any

import numpy as np
from jaxtyping import Float64
from scipy import special, stats

from mlx_attn.errors import ConfigError

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """An arm against the control: their paired differences, and those of tuning.

    Attributes:
        differences: The arm's loss minus the control's, seed by seed, in nats per token.
        tuning: Groups of such differences over the tuning seeds; only their spread counts.
        tuning_seeds: Seeds by which the learning rates were chosen; 0 if they were not tuned.
    """

    differences: tuple[float, ...]
    tuning: tuple[tuple[float, ...], ...] = ()
    tuning_seeds: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """An arm judged; positive differences mean that it is worse.

    A single seed has no spread: "not known", without intervals, and with p-values of 1.

    Attributes:
        word: One of `WORDS`.
        differences: The arm's loss minus the control's, seed by seed, in nats per token.
        interval: Of the mean, with the confidence of the comparison.
        inner_interval: Likewise, with twice the error probability; "the same" if it lies inside the
            margin.
        p_value: That the mean is 0; `p_holm` is corrected for the number of arms.
        margin: Differences below it count as none.
        degrees: Degrees of freedom, those that other pairs lend included.
        lent: Degrees of freedom that other pairs lend.
        tuning_error: The share of the standard error that comes from tuning, in nats per token.
        seeds_needed: Seeds with which a new comparison would decide four times out of five, if this
            were the true mean and spread; MOST_SEEDS are as many or more, None if decided.
        share: The mean as a share of the part's worth; None without a reference arm.
    """

    word: str
    differences: tuple[float, ...]
    mean: float
    interval: tuple[float, float] | None
    inner_interval: tuple[float, float] | None
    p_value: float
    p_holm: float
    margin: float
    degrees: int
    lent: int
    tuning_error: float
    seeds_needed: int | None
    share: float | None = None


def pooled(variances: Sequence[tuple[int, Any]]) -> tuple[int, Any]:
    """Return the sum of degrees of freedom, and the mean variance that they weight."""
    degrees = sum(each for each, _ in variances)
    weighted = sum(each * variance for each, variance in variances)
    return degrees, weighted / degrees if degrees else 0.0


def standard_error(variance: Any, seeds: int, tuning_seeds: int = 0) -> Any:
    """Return the standard error of a mean difference, the error of tuning included."""
    return np.sqrt(variance * (1 / seeds + of_tuning(tuning_seeds)))


def of_tuning(tuning_seeds: int) -> float:
    """Return the squared error by the choice of both arms' rates, as a share of s^2."""
    return TUNING_SHARE / tuning_seeds if tuning_seeds else 0.0


def p_value(mean: Any, error: Any, degrees: int) -> Any:
    """Return the two-sided p-value of a mean of 0, by Student's t."""
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.abs(mean) / np.asarray(error)
    # Without any spread the mean is certain: 0 / 0 means no difference.
    return 2 * special.stdtr(degrees, -np.nan_to_num(t, nan=0.0, posinf=inf))


def holm(p_values: Float64[np.ndarray, "... arms"]) -> Float64[np.ndarray, "... arms"]:
    """Correct p-values for their number, so that all together err as rarely as one (Holm, 1979)."""
    order, arms = np.argsort(p_values, axis=-1), p_values.shape[-1]
    # The smallest of m is multiplied by m, the next by m - 1, ..., the largest by 1,
    raised = np.take_along_axis(p_values, order, -1) * np.arange(arms, 0, -1)
    # and none is below the corrected value of a smaller one.
    corrected = np.empty_like(p_values)
    np.put_along_axis(corrected, order, np.maximum.accumulate(raised, axis=-1), -1)
    return np.minimum(corrected, 1.0)


@dataclass(frozen=True, slots=True)
class Sample:
    """Differences summed up: their mean, and the pooled variance of one of them."""

    seeds: int
    mean: float
    variance: float
    lent: int  # degrees of freedom from other pairs
    tuning_seeds: int

    @classmethod
    def of(cls, contrast: Contrast, others: Iterable[Contrast]) -> "Sample":
        """Pool the variances of an arm's differences, of its tuning pairs and of other arms."""
        differences = contrast.differences
        tuned, of_tuned = pooled([*_spreads(contrast.tuning)])
        pairs_of_others = (group for each in others for group in (each.differences, *each.tuning))
        other, of_other = pooled([*_spreads(pairs_of_others)])
        lent = (min(tuned, MOST_OF_TUNING), of_tuned), (min(other, OF_OTHER_ARMS), of_other)
        total, variance = pooled([*_spreads([differences]), *lent])
        seeds = len(differences)
        return cls(seeds, fmean(differences), variance, total - (seeds - 1), contrast.tuning_seeds)

    @property
    def degrees(self) -> int:
        """Degrees of freedom of the variance."""
        return self.seeds - 1 + self.lent

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return float(standard_error(self.variance, self.seeds, self.tuning_seeds))

    @property
    def tuning_error(self) -> float:
        """The part of it that comes from tuning."""
        return sqrt(self.variance * of_tuning(self.tuning_seeds))

    @property
    def p_value(self) -> float:
        """That the true mean is 0; 1 for a single seed."""
        return float(p_value(self.mean, self.error, self.degrees)) if self.seeds > 1 else 1.0

    def interval(self, confidence: float) -> tuple[float, float] | None:
        """Return the interval of the mean; None for a single seed."""
        if self.seeds < 2:
            return None
        reach = float(special.stdtrit(self.degrees, (1 + confidence) / 2)) * self.error
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
            different = planned.power_of_difference(level)
            return max(different, planned.power_of_the_same(margin, level_of_one))

        # Power rises with the number of seeds, so a bisection finds the first that has enough.
        candidates = range(self.seeds + 1, MOST_SEEDS)
        return self.seeds + 1 + bisect_left(candidates, POWER, key=power)

    def power_of_difference(self, level: float) -> float:
        """Return the probability of a p-value of `level`, were this the true mean."""
        threshold = special.stdtrit(self.degrees, 1 - level / 2)
        # Beyond the other threshold, on the wrong side, lies next to nothing.
        return self._exceeds(abs(self.mean), threshold)

    def power_of_the_same(self, margin: float, level: float) -> float:
        """Return at least the probability that both one-sided tests reject, likewise."""
        threshold = special.stdtrit(self.degrees, 1 - level)
        above = self._exceeds(margin + self.mean, threshold)
        below = self._exceeds(margin - self.mean, threshold)
        return max(0.0, above + below - 1)

    def _exceeds(self, distance: float, threshold: float) -> float:
        """Return P(t > threshold) for a true distance: the noncentral t distribution."""
        if not self.error:
            return float(distance > 0)
        return 1 - float(special.nctdtr(self.degrees, distance / self.error, threshold))


def _spreads(groups: Iterable[Sequence[float]]) -> Iterable[tuple[int, float]]:
    """Yield the degrees of freedom and the variance of each group that has a spread."""
    for group in groups:
        if len(group) > 1:
            yield len(group) - 1, float(np.var(group, ddof=1))


def judge(
    contrasts: Mapping[str, Contrast],
    margin: float,
    confidence: float = 0.95,
    worth: float | None = None,
) -> dict[str, Verdict]:
    """Judge all arms of a comparison.

    Args:
        contrasts: By arm, one or more.
        margin: In nats per token: smaller differences count as none.
        confidence: That no arm is called better or worse falsely, of all together.
        worth: The mean difference of the reference arm, which lacks the part in question; it caps
            the margin, see `MOST_OF_WORTH`.

    Raises:
        ConfigError: A difference is not finite, or the margin or the confidence is impossible.
    """
    _check(contrasts, margin, confidence)
    if worth is not None:
        margin = min(margin, max(0.0, MOST_OF_WORTH * worth))
    samples = {
        arm: Sample.of(contrast, [each for other, each in contrasts.items() if other != arm])
        for arm, contrast in contrasts.items()
    }
    p_values = holm(np.array([sample.p_value for sample in samples.values()])).tolist()
    verdict_of = partial(_verdict, margin=margin, confidence=confidence, worth=worth)
    return {
        arm: verdict_of(sample, contrasts[arm].differences, p_holm, len(contrasts))
        for (arm, sample), p_holm in zip(samples.items(), p_values, strict=True)
    }


def _verdict(
    sample: Sample,
    differences: tuple[float, ...],
    p_holm: float,
    arms: int,
    *,
    margin: float,
    confidence: float,
    worth: float | None,
) -> Verdict:
    level = 1 - confidence
    inner = sample.interval(1 - 2 * level)
    word, needed = _word(sample.mean, inner, margin, p_holm <= level), None
    if word == "not known":
        needed = sample.seeds_needed(margin, level / arms, level)
    return Verdict(
        word=word,
        differences=differences,
        mean=sample.mean,
        interval=sample.interval(confidence),
        inner_interval=inner,
        p_value=sample.p_value,
        p_holm=p_holm,
        margin=margin,
        degrees=sample.degrees,
        lent=sample.lent,
        tuning_error=sample.tuning_error,
        seeds_needed=needed,
        share=sample.mean / worth if worth else None,
    )


def _word(mean: float, inner: tuple[float, float] | None, margin: float, differs: bool) -> str:
    """Return the word for a mean; "the same" comes first, because such a difference is small."""
    if inner and -margin < inner[0] and inner[1] < margin:
        return "the same"
    if differs:
        return "worse" if mean > 0 else "better"
    return "not known"


def _check(contrasts: Mapping[str, Contrast], margin: float, confidence: float) -> None:
    for arm, contrast in contrasts.items():
        if not contrast.differences or not all(map(isfinite, contrast.differences)):
            raise ConfigError(
                f"the differences of {arm} must be one finite number or more: got "
                f"{list(contrast.differences)}; leave out what diverged"
            )
    if not 0 <= margin < inf:
        raise ConfigError(f"delta is in nats per token and not negative: got {margin}")
    if not 0.5 <= confidence < 1:
        raise ConfigError(f"confidence is from 0.5 to below 1, such as 0.95: got {confidence}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Solving:
    """How often and how soon an arm solves a task.

    Attributes:
        solved: Of its trainings, `runs` in all.
        median_steps: Until it was solved; None unless more than half of the trainings solved it.
        word: "better" if more of them solve it than of the control's, "worse" if fewer, or "not
            known"; "" for the control.
        p_holm: Of Fisher's exact test against the control, corrected; None for the control.
    """

    solved: int
    runs: int
    median_steps: float | None
    word: str = ""
    p_holm: float | None = None


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
