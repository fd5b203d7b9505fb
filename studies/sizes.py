"""The results of the study of two sizes: the cost of each form in tokens, as registered."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import expm1, inf, log, sqrt
from typing import Self

import numpy as np
from scipy.stats import t as student

from studies.mixed import CONFIDENCE, Estimate, estimate, words
from studies.plan import SHORTER, Study, own_rates, registered, world
from studies.trainings import STANDARD, Losses, Training, by_rates, read

MARGIN = 5.0  # per cent of the tokens: smaller costs count as none

Ratio = tuple[float, float, float]  # of two means, and the ends of its interval


def fieller(of: np.ndarray, to: np.ndarray, confidence: float = CONFIDENCE) -> Ratio | None:
    """Return the ratio of two means over the same seeds; None if the mean of `to` may be 0.

    The interval holds each c for which Student's paired t does not refute mean(of - c to) = 0
    (Fieller, 1954): (m - c p)^2 <= t^2 var(of - c to) / n is a quadratic inequality in c.
    """
    n = len(of)
    reach = float(student.ppf((1 + confidence) / 2, n - 1)) ** 2 / n
    m, p, covariance = float(of.mean()), float(to.mean()), np.cov(of, to)
    a = p**2 - reach * covariance[1, 1]
    b = m * p - reach * covariance[0, 1]
    c = m**2 - reach * covariance[0, 0]
    if a <= 0 or p <= 0:
        return None
    half = sqrt(max(0.0, b**2 - a * c)) / a
    return m / p, b / a - half, b / a + half


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a form at one size.

    Attributes:
        nats: The difference in loss.
        tokens: The cost in the logarithm of tokens, with its 95 % interval.
        word: With Holm's correction over the forms of the size.
    """

    nats: Estimate
    tokens: Ratio
    word: str

    @property
    def error(self) -> float:
        """The standard error of the cost in the logarithm of tokens."""
        _, low, high = self.tokens
        return (high - low) / 2 / float(student.ppf((1 + CONFIDENCE) / 2, self.nats.degrees))

    @property
    def percent(self) -> Ratio:
        """The cost in per cent of the tokens, with its interval."""
        mean, low, high = (100 * expm1(one) for one in self.tokens)
        return mean, low, high


Costs = Mapping[str, Cost]  # by form


class Sizes:
    """The costs of all forms at each size.

    Args:
        study: The registration.
        trainings: The finished ones, of which whole pairs are used.
    """

    def __init__(self, study: Study, trainings: list[Training]):
        self.study, self.trainings = study, trainings
        self._losses = by_rates(trainings, of_searches=False)
        rule = {size: dict.fromkeys(study.arms, 1.0) for size in study.seeds}
        # A size, and the rates of its forms: the rule's first, then those that a search chose.
        self.columns = [*rule.items(), *own_rates(study, trainings).items()]
        self.costs = {size: self.costs_at(size, rates) for size, rates in reversed(self.columns)}

    @classmethod
    def read(cls, name: str) -> Self:
        """Read a registration and the committed records."""
        return cls(registered(name), read(name))

    def losses(self, size: str, arm: str, rate: float = 1.0) -> Losses:
        """Return the losses of an arm by seed; none if one of its trainings diverged."""
        of_arm = self._losses.get((self.study.name, world(size), arm), {})
        found = of_arm.get((rate, ()), {})
        return found if inf not in found.values() else {}

    def named(self, size: str) -> str:
        """Return the parameters of the book's form at a size, the seeds and rates of its costs."""
        book = world(size), STANDARD
        params = next(t.params for t in self.trainings if (t.world, t.arm) == book)
        seeds = sorted({cost.nats.seeds for cost in self.costs[size].values()})
        whose = "" if self.study.seeds else ", own rates"
        return f"{params / 1e6:.2f} M, {' or '.join(map(str, seeds))} seeds{whose}"

    def costs_at(self, size: str, rates: Mapping[str, float]) -> Costs:
        """Return the costs at one size, each form at a factor of the rates."""
        control, shorter = (self.losses(size, arm, rates[arm]) for arm in (STANDARD, SHORTER))
        unit = log(1 / self.study.shorter)
        price = {seed: (shorter[seed] - control[seed]) / unit for seed in {*control} & {*shorter}}
        nats, tokens, small = dict[str, Estimate](), dict[str, Ratio](), set[str]()
        for arm in self.study.forms[1:]:
            mine = self.losses(size, arm, rates[arm])
            seeds = sorted({*mine} & {*control} & {*price})
            if len(seeds) > 1:
                of = np.array([mine[seed] - control[seed] for seed in seeds])
                to = np.array([price[seed] for seed in seeds])
                wide, narrow = fieller(of, to), fieller(of, to, 2 * CONFIDENCE - 1)
                if wide and narrow:
                    nats[arm], tokens[arm] = estimate([of.tolist()], 0.0), wide
                    if max(abs(100 * expm1(end)) for end in narrow[1:]) < MARGIN:
                        small.add(arm)
        said = words(nats, small)
        return {arm: Cost(one, tokens[arm], said[arm]) for arm, one in nats.items()}

    def changes(self) -> Mapping[str, Estimate]:
        """Return the cost at M less that at S, in the logarithm of tokens, with Welch's degrees."""
        found = dict[str, Estimate]()
        for arm, large in self.costs.get("M", {}).items():
            if small := self.costs["S"].get(arm):
                squares = [(cost.error**2, cost.nats.degrees) for cost in (large, small)]
                variance = sum(square for square, _ in squares)
                found[arm] = Estimate(
                    mean=large.tokens[0] - small.tokens[0],
                    error=sqrt(variance),
                    degrees=int(variance**2 / sum(square**2 / n for square, n in squares)),
                    seeds=large.nats.seeds + small.nats.seeds,
                    searches=1,
                )
        return found

    def refuted(self) -> Mapping[str, list[str]]:
        """Return by prediction the forms whose interval at the first size lies outside of it."""
        costs = self.costs.get(next(iter(self.study.sizes)), {})
        found = {name: list[str]() for name in self.study.predictions}
        for name, bounds in self.study.predictions.items():
            for arm, (least, most) in bounds.items():
                if arm in costs:
                    _, low, high = costs[arm].percent
                    found[name] += [arm] if high < least or low > most else []
        return found

    def lines(self) -> Iterator[str]:
        """Yield every number of the study."""
        for size, rates in self.columns:
            yield from _lines(size, rates, self.costs_at(size, rates))
        changes = self.changes()
        said = words(changes, small=())
        for arm, change in changes.items():
            low, high = change.interval()
            yield (
                f"M less S, {arm}: {change.mean:+.3f} ({low:+.3f} to {high:+.3f}) in the logarithm "
                f"of tokens, {'not known' if said[arm] == 'not known' else 'changed'}"
            )
        for name, arms in self.refuted().items():
            yield f"prediction {name}: refuted for {', '.join(arms) or 'no form'}"
        yield f"python -m studies.run FOLDER/python.txt RECORDS --study {self.study.name}"


def _lines(size: str, rates: Mapping[str, float], costs: Costs) -> Iterator[str]:
    for arm, cost in costs.items():
        low, high = cost.nats.interval()
        mean, least, most = cost.percent
        yield (
            f"{size}, rates x {rates[arm]:g} for {arm}, x {rates[STANDARD]:g} for {STANDARD}: "
            f"{cost.nats.mean:+.4f} nats ({low:+.4f} to {high:+.4f}), {mean:+.1f} % of the tokens "
            f"({least:+.1f} to {most:+.1f}), {cost.word}, {cost.nats.seeds} seeds"
        )
