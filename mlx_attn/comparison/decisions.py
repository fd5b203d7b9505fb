"""Verdicts on paired differences: the words, and what they follow from.

A difference is judged by a moderated t (`statistics`). If the differences of its world are not
normal (`statistics.shape_p` below `SHAPE`), it is held to the worst of five families of
distributions as well. Each verdict also has the word of the worst of five alone, `worst_word`;
studies that were registered with that test are judged by it, and then it is the other word.

A difference is judged beside what the part is worth, the loss of a reference arm that takes it away
(assay sensitivity, ICH E10, section 1.5): where that is less than `SENSITIVITY` margins, no test
can say that a form without the part does as well, and the word is "insensitive".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, sqrt
from statistics import mean, stdev
from typing import Any

import numpy as np

from mlx_attn.comparison.statistics import (
    Prior,
    Variance,
    critical_t,
    holm,
    level_of_looks,
    minimum_detectable_effect,
    prior_of,
    required_seeds,
    shape_p,
    tail,
)
from mlx_attn.comparison.worst_of_five import critical, one_sided, two_sided
from mlx_attn.errors import ConfigError

SHAPE = 0.05
"""Differences of a world whose shape is less likely normal are held to the worst of five."""

SENSITIVITY = 4.0
"""Margins that a part must be worth before a verdict on it means anything."""

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

    Every number is finite. One seed has no spread: then the word is "undecided", what would be
    infinite is None, the p-values are 1, and seeds_needed is 2, the fewest that can be judged.

    Attributes:
        word: One of `WORDS`.
        differences: The arm's loss minus the control's, seed by seed, in nats per token.
        interval: Of the mean, by the test that decides.
        p_value: That the mean is 0; `p_holm`: adjusted for the number of arms.
        p_equivalence: Two one-sided tests that the mean lies within the margin, adjusted likewise.
        resolves: The minimum detectable effect, in nats, with a power of 0.8.
        seeds_needed: Seeds that would decide with a power of 0.8, were this the true mean and
            spread; 1000 stands for 1000 or more; None where it is decided.
        tuning_error: Standard error that the choice of learning rates adds.
        share: The mean as a share of what the part is worth; None without a reference arm.
        other_word: By the test that does not decide: the worst of five families, or of studies
            that were registered with it the moderated t; "" in older results.
        shape: P-value that the differences of the world are normal.
        df: Degrees of freedom of the t.
    """

    word: str
    differences: tuple[float, ...]
    mean: float
    interval: tuple[float, float] | None
    p_value: float
    p_holm: float
    p_equivalence: float
    resolves: float | None
    seeds_needed: int | None
    tuning_error: float = 0.0
    share: float | None = None
    other_word: str = ""
    shape: float = 1.0
    df: float = 0.0


@dataclass(frozen=True, slots=True)
class Sample:
    """Differences seed by seed, summed up: their number, mean and standard deviation.

    Attributes:
        tuning: The standard error that tuning adds, the same for every seed.
        df: Degrees of freedom of a moderated t, whose deviation `sd` is.
        robust: Whether p-values are those of the worst of five families.
        t_counts: Whether those of the t count, too: the larger one is then taken.
    """

    n: int
    mean: float
    sd: float
    tuning: float = 0.0
    df: float = 0.0
    robust: bool = False
    t_counts: bool = True

    @classmethod
    def of(
        cls,
        differences: Sequence[float],
        tuning: float = 0.0,
        prior: Prior | None = None,
        robust: bool = False,
    ) -> "Sample":
        """Computed exactly, so that the order of the differences does not matter.

        With a prior the test is a moderated t; without one, or robust, the variance is their own.
        """
        n = len(differences)
        sd = stdev(differences) if n > 1 else 0.0
        of_t = (prior or Prior()).shrunk(Variance(sd**2, n - 1.0))
        if robust and prior is None:
            return cls(n, mean(differences), sd, tuning, n - 1.0, robust=True, t_counts=False)
        return cls(n, mean(differences), sqrt(of_t.value), tuning, of_t.df, robust)

    @property
    def error(self) -> float:
        """The standard error of the mean, sqrt(sd^2 / n + tuning^2)."""
        return sqrt(self.sd**2 / self.n + self.tuning**2)

    def t(self, distance: float) -> float:
        """A distance in standard errors; without spread there is no doubt."""
        if self.error == 0:
            return float(np.sign(distance)) * inf if distance else 0.0
        return distance / self.error

    def p_difference(self, rounding: float = 0.0) -> float:
        """That the mean is 0; the largest p-value of all means within `rounding` of this one."""
        t = self.t(max(abs(self.mean) - rounding, 0.0))
        return self._p(2 * tail(t, self.df or 1.0), two_sided(t, self.n))

    def p_equivalence(self, margin: float, rounding: float = 0.0) -> float:
        """That the mean is not within the margin; the largest likewise.

        Of the two one-sided tests (Schuirmann, 1987) the nearer bound has the larger p-value.
        """
        t = self.t(margin - abs(self.mean) - rounding)
        return self._p(tail(t, self.df or 1.0), one_sided(t, self.n))

    def _p(self, of_t: float, of_worst: Any) -> float:
        """The p-value of the test that decides; 1 for a single difference, which has no spread."""
        if self.n < 2:
            return 1.0
        return max(of_t * self.t_counts, float(of_worst) * self.robust)

    def interval(self, confidence: float) -> tuple[float, float]:
        """The interval that excludes 0 exactly where `p_difference` finds a difference."""
        of_t = critical_t(1 - confidence, self.df) * self.t_counts
        of_worst = critical(1 - confidence, self.n) * self.robust
        reach = max(of_t, of_worst) * self.error
        return self.mean - reach, self.mean + reach


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Paired differences to be judged, and by which measure.

    Attributes:
        differences: The arm's loss minus the control's, seed by seed, in nats per token.
        margin: Differences below it count as none.
        worth: Loss of the reference arm minus the control's; None without a reference arm.
        tuning: Standard error that tuning adds.
        rounding: What a rounding of the start changes: a word stands only if it would stand for
            every mean, and every worth, that are so far from those found.
        world: Where the differences were measured: variances are shared within it.
    """

    differences: tuple[float, ...]
    margin: float
    worth: float | None = None
    tuning: float = 0.0
    rounding: float = 0.0
    world: str = ""

    @property
    def variance(self) -> Variance:
        """Of the differences."""
        n = len(self.differences)
        return Variance(stdev(self.differences) ** 2 if n > 1 else 0.0, n - 1.0)

    def is_sensitive(self, sensitivity: float) -> bool:
        """Whether the part is worth so many margins, so that a verdict means anything."""
        return self.worth is None or self.worth - self.rounding >= sensitivity * self.margin


def judge(
    differences: Mapping[str, Sequence[float]],
    margin: float,
    confidence: float = 0.95,
    *,
    worth: float | None = None,
    tuning: Mapping[str, float] | None = None,
    rounding: float = 0.0,
    looks: Sequence[int] = (),
    measured: Sequence[Variance] = (),
) -> dict[str, Verdict]:
    """Judge arms that share a control and a margin; see `Case` and `judge_all`.

    Args:
        differences: An arm's loss minus the control's, seed by seed, in nats per token.
        margin: Differences below it count as none.
        confidence: Of all words together.
        worth: Loss of the reference arm minus the control's; None where there is none.
        tuning: Standard error that tuning adds, by arm.
        rounding: What a rounding of the start changes.
        looks: Numbers of seeds after which the differences are looked at; empty: once.
        measured: Variances of other differences in this world, such as those of tuning.

    Raises:
        ConfigError: A difference is not finite, or the margin or the confidence is impossible.
    """
    cases = {
        arm: Case(
            differences=tuple(map(float, found)),
            margin=margin,
            worth=worth,
            tuning=(tuning or {}).get(arm, 0.0),
            rounding=rounding,
        )
        for arm, found in differences.items()
    }
    return judge_all(cases, confidence, looks, measured={"": measured})


def judge_all(
    cases: Mapping[str, Case | None],
    confidence: float = 0.95,
    looks: Sequence[int] = (),
    sensitivity: float = SENSITIVITY,
    measured: Mapping[str, Sequence[Variance]] | None = None,
    worst_of_five: bool = False,
) -> dict[str, Verdict]:
    """Judge all cases; with a probability of at most 1 - confidence is any of them misjudged.

    Two tests of each, that its mean is 0 and that it lies within the margin, are corrected (Holm)
    for all cases.

    Args:
        cases: By name; None is one that is not finished: it has no verdict, and counts in the
            correction with p = 1, so that finishing it withdraws no word.
        confidence: Of all words together.
        looks: Numbers of seeds after which the differences are looked at before a word stands; see
            `statistics.level_of_looks`.
        sensitivity: Margins that a part must be worth.
        measured: Variances of other differences, by world.
        worst_of_five: Whether that test decides, as it was registered, instead of the moderated t.

    Raises:
        ConfigError: A difference is not finite, or a margin or the confidence is impossible.
    """
    _check(cases, confidence)
    level = len(cases) * level_of_looks(looks, (1 - confidence) / max(len(cases), 1))
    worlds = _worlds(cases, measured or {})
    samples = {
        robust: {n: c and worlds[c.world].sample(c, robust) for n, c in cases.items()}
        for robust in (False, True)
    }
    found = _verdicts(cases, samples[worst_of_five], level)
    others = _verdicts(cases, samples[not worst_of_five], level)
    return {
        name: _with_worth(
            replace(verdict, other_word=others[name].word, shape=worlds[case.world].shape),
            case,
            sensitivity,
        )
        for name, verdict in found.items()
        if (case := cases[name])
    }


@dataclass(frozen=True, slots=True)
class _World:
    """What all differences of a world say about each of them: their variance and their shape."""

    prior: Prior
    shape: float

    def sample(self, case: Case, worst_of_five: bool) -> Sample:
        """The differences of a case for the moderated t, or for the worst of five alone."""
        if worst_of_five:
            return Sample.of(case.differences, case.tuning, robust=True)
        return Sample.of(case.differences, case.tuning, self.prior, robust=self.shape < SHAPE)


def _worlds(
    cases: Mapping[str, Case | None], measured: Mapping[str, Sequence[Variance]]
) -> dict[str, _World]:
    found: dict[str, _World] = {}
    for world in {case.world for case in cases.values() if case}:
        here = [case for case in cases.values() if case and case.world == world]
        variances = [*(case.variance for case in here), *measured.get(world, ())]
        shape = shape_p([case.differences for case in here])
        found[world] = _World(prior_of(variances), shape)
    return found


def _verdicts(
    cases: Mapping[str, Case | None], samples: Mapping[str, Sample | None], level: float
) -> dict[str, Verdict]:
    """Return the verdicts of one test, their p-values adjusted for all cases."""
    p_values, outside = dict.fromkeys(cases, 1.0), dict.fromkeys(cases, 1.0)
    for name, case in cases.items():
        if case and (sample := samples[name]):
            p_values[name] = sample.p_difference(case.rounding)
            outside[name] = sample.p_equivalence(case.margin, case.rounding)
    different, equivalent = holm(p_values), holm(outside)
    return {
        name: _verdict(
            case, sample, (p_values[name], different[name], equivalent[name]), level, len(cases)
        )
        for name, case in cases.items()
        if case and (sample := samples[name])
    }


def _verdict(
    case: Case, sample: Sample, p: tuple[float, float, float], level: float, cases: int
) -> Verdict:
    """Return the verdict by its p-values: of no difference, that adjusted, equivalence adjusted."""
    word = word_of(sample.mean, p[1] <= level, p[2] <= level)
    return Verdict(
        word=word,
        differences=case.differences,
        mean=sample.mean,
        p_value=p[0],
        p_holm=p[1],
        p_equivalence=p[2],
        tuning_error=sample.tuning,
        df=sample.df,
        **_of_spread(sample, word, case.margin, 1 - level, cases),
    )


def _with_worth(verdict: Verdict, case: Case, sensitivity: float) -> Verdict:
    """Return a verdict with its share of the part's worth, or "insensitive"."""
    if not case.is_sensitive(sensitivity):
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
    """The word, by what the two tests found; the sign of the difference gives the direction."""
    if not different:
        return "equivalent" if equivalent else "undecided"
    direction = "worse" if difference > 0 else "better"
    return f"{direction} within the margin" if equivalent else direction


def _of_spread(
    sample: Sample, word: str, margin: float, confidence: float, arms: int
) -> dict[str, Any]:
    """The figures of a verdict that need the spread of two seeds."""
    if sample.n < 2:
        return {"interval": None, "resolves": None, "seeds_needed": 2}
    spread, needed = sample.error * sqrt(sample.n), None  # with tuning's share
    lent = sample.df - (sample.n - 1)  # degrees of freedom of other differences
    if word == "undecided":
        seeds = required_seeds(spread, sample.mean, margin, confidence, arms, lent)
        needed = max(seeds, sample.n + 1)
    return {
        "interval": sample.interval(confidence),
        "resolves": minimum_detectable_effect(spread, sample.n, confidence, arms, lent),
        "seeds_needed": needed,
    }


def tuning_error(losses: Mapping[float, Sequence[float]]) -> float:
    """Standard error that choosing a learning rate adds to an arm's loss, in the losses' unit.

    Two parts, as independent errors. The choice: tuning seeds are drawn again with replacement, and
    what the factor that is then best costs above the best one is squared and averaged over all
    draws, times k / (k - 1) for k seeds. The grid: what the vertex of a parabola through the best
    factor and its neighbours lies below the best.

    Args:
        losses: By factor of the learning rates, a loss for each tuning seed.
    """
    factors = sorted(f for f, found in losses.items() if all(map(isfinite, found)))
    if len(factors) < 3 or (k := min(len(losses[f]) for f in factors)) < 2:
        return 0.0
    runs = np.array([losses[f][:k] for f in factors])
    means = runs.mean(axis=1)
    drawn = np.indices((k,) * k).reshape(k, -1) if k <= _MOST_DRAWN else _some_draws(k)
    chosen = runs[:, drawn].mean(axis=1).argmin(axis=0)
    of_choice = k / (k - 1) * float(np.mean((means[chosen] - means.min()) ** 2))
    return sqrt(of_choice + _grid_gain(np.log2(factors), means) ** 2)


_MOST_DRAWN = 4  # seeds of which all draws are made; of more, some


def _some_draws(k: int) -> np.ndarray:
    return np.random.default_rng(0).integers(k, size=(k, 500))


def _grid_gain(octaves: np.ndarray, means: np.ndarray) -> float:
    """What a factor between those tried would gain, by the parabola through the best three."""
    best = int(means.argmin())
    if not 0 < best < len(means) - 1:
        return 0.0
    x, y = octaves[best - 1 : best + 2] - octaves[best], means[best - 1 : best + 2] - means[best]
    curvature, slope, _ = np.polyfit(x, y, 2)
    return float(slope**2 / (4 * curvature)) if curvature > 0 else 0.0
