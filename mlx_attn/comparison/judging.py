"""Judge paired differences of loss: Student's t with a few lent degrees of freedom.

d_i is an arm's loss minus the control's with seed i, in nats per token. The variance of n of them
is hardly known, so pairs that the mean does not use lend theirs: v, of m degrees of freedom.

    s^2 = ((n - 1) var(d) + m v) / (n - 1 + m)      variance of one difference
    e^2 = s^2 / n + s^2 / (4 k)                     squared standard error of the mean
    t   = mean(d) / e                               Student's law, n - 1 + m degrees of freedom

m is fixed, not estimated (Smyth, 2004): an estimate from few arms fails exactly if runs go wrong.
The term with k is the error of tuning: k other tuning seeds might have chosen other rates.

Is a mean 0? The p-values of all arms are corrected by Holm (1979). Is it within the margin? Yes if
the interval of twice the error probability, 90 % instead of 95 %, lies inside: two one-sided tests
(Schuirmann, 1987). `benchmarks/judging.py` simulates how often this is wrong, and what it finds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from typing import Any

import numpy as np
from scipy import stats

from mlx_attn.comparison.result import MOST_SEEDS, Solving, Verdict

TUNING_DEGREES, OTHER_DEGREES = 8, 2  # the most that an arm's tuning pairs and other arms lend
LEAST_LENT = 1 / 9  # of the arm's own variance: another arm's lends nothing below it
TUNING_SHARE = 1 / 4  # of s^2: searches over factors 2 apart, repeated, scatter by 0.00 to 0.24
MOST_OF_WORTH = 1 / 2  # of the least that the part may be worth: the largest margin
"""FDA, Non-Inferiority Clinical Trials (2016): the fixed-margin method starts from the lower end of
the interval of the effect, and keeps half of it."""
POWER = 0.8  # how often the seeds needed decide
TuningSeeds = Callable[[int], int] | None
"""How many tuning seeds come with a number of seeds; None if no rate is tuned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """An arm against the control: paired differences of loss, in nats per token."""

    differences: tuple[float, ...]  # seed by seed
    tuning: tuple[tuple[float, ...], ...] = ()  # by factor and tuning seed; none if not tuned


def holm(p_values: np.ndarray) -> np.ndarray:
    """Correct p-values [..., arms], so that all together err as rarely as one (Holm, 1979)."""
    order, arms = np.argsort(p_values, axis=-1), p_values.shape[-1]
    # The smallest of m is multiplied by m, the next by m - 1, ..., the largest by 1,
    raised = np.take_along_axis(p_values, order, -1) * np.arange(arms, 0, -1)
    # and none is below the corrected value of a smaller one.
    corrected = np.minimum(np.maximum.accumulate(raised, axis=-1), 1.0)
    return np.take_along_axis(corrected, np.argsort(order, axis=-1), -1)


@lru_cache(4096)  # every arm asks for those of all others
def spread(groups: tuple[tuple[float, ...], ...]) -> tuple[int, float]:
    """Return the degrees of freedom and the variance of groups, each around its own mean."""
    degrees = sum(len(group) - 1 for group in groups)
    return degrees, sum(len(group) * float(np.var(group)) for group in groups) / max(1, degrees)


@dataclass(frozen=True, slots=True)
class Sample:
    """The differences of one arm, summed up; numbers of seeds may be arrays, of planned ones."""

    seeds: Any  # n
    mean: float
    variance: float  # s^2
    lent: int  # m
    tuning_seeds: Any = 0  # k; 0 if the rates were not tuned

    @classmethod
    def of(cls, arm: str, contrasts: Mapping[str, Contrast]) -> "Sample":
        """Pool the variances of an arm's differences, of its tuning pairs and of other arms."""
        found = contrasts[arm]
        degrees, variance = spread((found.differences,))
        # An arm that computes nearly the same as the control shows nothing of the spread.
        others = [
            other
            for name, other in contrasts.items()
            if name != arm and spread((other.differences,))[1] > LEAST_LENT * variance
        ]
        tuned, of_tuning = spread(found.tuning)
        spreads = [spread((one.differences, *one.tuning)) for one in others]
        other = sum(count for count, _ in spreads)
        of_others = sum(count * each for count, each in spreads) / max(1, other)
        tuned, other = min(tuned, TUNING_DEGREES), min(other, OTHER_DEGREES)
        total, lent = degrees * variance + tuned * of_tuning + other * of_others, tuned + other
        tuning_seeds = max(map(len, found.tuning), default=0)
        mean = float(np.mean(found.differences))
        return cls(degrees + 1, mean, total / max(1, degrees + lent), lent, tuning_seeds)

    @property
    def has_spread(self) -> bool:
        """Return True if the spread is known; runs whose seed changes nothing are one run."""
        differ = not self.mean or self.variance > (1e-6 * self.mean) ** 2
        return self.seeds > 1 and differ

    @property
    def law(self) -> Any:
        """Student's law of the mean around the true one; its scale is e."""
        k = self.tuning_seeds
        of_tuning = np.where(k, TUNING_SHARE / np.maximum(k, 1), 0.0)
        error = np.sqrt(self.variance * (1 / self.seeds + of_tuning))
        # Without any spread the mean is certain, but a scale of 0 is not allowed.
        return stats.t(self.seeds - 1 + self.lent, scale=np.maximum(error, 1e-300))

    def seeds_needed(
        self, margin: float, level: float, level_of_one: float, planned: TuningSeeds = None
    ) -> int:
        """Return the fewest seeds, more than these, that decide with a probability of POWER."""
        seeds = np.arange(self.seeds + 1, MOST_SEEDS)
        tuning = [planned(n) for n in seeds.tolist()] if planned else 0
        tuned = np.maximum(self.tuning_seeds, tuning)
        law = replace(self, seeds=seeds, tuning_seeds=tuned).law
        different = law.cdf(abs(self.mean) - law.isf(level / 2))
        inside = margin - law.isf(level_of_one)
        # Both one-sided tests reject at least as often as their sum less 1.
        same = law.cdf(inside + self.mean) + law.cdf(inside - self.mean) - 1
        # Either decides; while neither is likely, both at once are rare.
        enough = np.flatnonzero(different + np.maximum(same, 0) >= POWER)
        return self.seeds + 1 + int(enough[0]) if len(enough) else MOST_SEEDS


def judge(
    contrasts: Mapping[str, Contrast],
    margin: float,
    confidence: float = 0.95,
    reference: Verdict | None = None,
    planned: TuningSeeds = None,
) -> dict[str, Verdict]:
    """Judge all arms of a comparison.

    Args:
        contrasts: By arm.
        margin: In nats per token: smaller differences count as none.
        confidence: That no arm is called better or worse falsely, of all together.
        reference: That of the arm that lacks the part in question, see `MOST_OF_WORTH`.
        planned: More seeds of the verdict may bring more tuning seeds.
    """
    level, least = 1 - confidence, inf
    if reference:
        least = max(0.0, reference.interval[0]) if reference.interval else 0.0
    margin = min(margin, MOST_OF_WORTH * least)
    samples = [Sample.of(arm, contrasts) for arm in contrasts]
    p_values = [2 * s.law.sf(abs(s.mean)) if s.has_spread else 1.0 for s in samples]
    verdicts: dict[str, Verdict] = {}
    for arm, sample, p_holm in zip(contrasts, samples, holm(np.array(p_values)), strict=True):
        law, mean, several = sample.law, sample.mean, sample.has_spread
        word, needed = "not known", None
        reach = float(law.isf(level / 2)) if sample.variance else 0.0
        # "The same" comes first, because such a difference is small.
        if several and abs(mean) + law.isf(level) < margin:
            word = "the same"
        elif p_holm <= level:
            word = "worse" if mean > 0 else "better"
        elif several:
            needed = sample.seeds_needed(margin, level / len(samples), level, planned)
        verdicts[arm] = Verdict(
            word=word,
            differences=contrasts[arm].differences,
            mean=mean,
            interval=(mean - reach, mean + reach) if several else None,
            p_holm=float(p_holm),
            margin=margin,
            lent=sample.lent,
            seeds_needed=needed,
            share=mean / reference.mean if reference and least else None,
        )
    return verdicts


def judge_solving(solving: Mapping[str, Solving], confidence: float = 0.95) -> dict[str, Solving]:
    """Judge how often all arms solve a task, against the first one, by Fisher's exact test."""
    control, *others = solving.values()
    tables = [[[s.solved, s.runs - s.solved] for s in (arm, control)] for arm in others]
    p_values = holm(np.array([stats.fisher_exact(table)[1] for table in tables])).tolist()
    judged = [control]
    for arm, p_holm in zip(others, p_values, strict=True):
        more = arm.solved * control.runs > control.solved * arm.runs
        word = ("better" if more else "worse") if p_holm <= 1 - confidence else "not known"
        judged.append(replace(arm, word=word, p_holm=p_holm))
    return dict(zip(solving, judged, strict=True))
