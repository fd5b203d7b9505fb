"""Measure how a cost changes with the width, and how it develops during training.

    p_s(C) = d_s(C) / b(C)                                    a cost in tokens, at width C
    b(C)   = nats that the control gains if its tokens are multiplied by e, at width C
    g_s    = slope of the least-squares line of p_s over log2 C

A trend states if a cost vanishes, stays or grows. Two tests of g, that its mean is 0 and that it
lies within the margin, are corrected in the same way for all trends of the study.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import fmean, stdev

import numpy as np

from studies.book import Record
from studies.decisions import Case, Sample, Verdict, judge_all
from studies.findings import (
    FAILS,
    HOLDS,
    TESTS,
    UNDECIDED,
    UNFINISHED,
    Finding,
    findings,
    plan_of,
    token_values,
)
from studies.schedule import Records
from studies.study import STANDARD, Study, Trend
from studies.t_tests import TTest

_CHANGES = {"equivalent": "stays", "worse": "rises", "better": "falls"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of an arm at one width.

    Attributes:
        width: The width C of the residual stream.
        costs: p by seed; positive if the control needs fewer tokens.
        error: Standard error that tuning and b add to their mean.
        interval: The interval of the mean for only this width, uncorrected.
    """

    width: int
    costs: tuple[float, ...]
    error: float
    interval: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendFinding:
    """The results of a trend.

    Attributes:
        costs: The costs at each finished width, the narrowest first.
        verdict: The verdict on the change of p per doubling; None until all widths are finished.
        word: One of `study.TRENDS`; "" until it is finished.
        answer: One of the words of `findings`.
    """

    trend: Trend
    costs: tuple[Cost, ...]
    verdict: Verdict | None = None
    word: str = ""
    answer: str = UNFINISHED


def trend_findings(study: Study, records: Records) -> list[TrendFinding]:
    """Return every trend of a study, in its order."""
    found, confidence = findings(study, records), study.protocol.confidence
    values = {world: token_values(study, records, world) for world in study.worlds}
    rows: list[tuple[Trend, tuple[Cost, ...], Case | None]] = []
    for trend in study.trends:
        of_arm = [f for f in found if f.contrast.arm == trend.arm]
        known = (_cost(study, f, values[f.world], confidence) for f in of_arm)
        costs = tuple(sorted((c for c in known if c), key=lambda cost: cost.width))
        whole = len(costs) == len(study.worlds)
        rows.append((trend, costs, slope_of(costs) if whole else None))
    cases = {trend.arm: slope and replace(slope, margin=trend.margin) for trend, _, slope in rows}
    verdicts = judge_all(cases, confidence, test=TESTS[study.protocol.test])
    return [_trend_finding(trend, costs, verdicts.get(trend.arm)) for trend, costs, _ in rows]


def _cost(study: Study, found: Finding, values: Sequence[float], confidence: float) -> Cost | None:
    """Return a finding in tokens; None until it and the worth of tokens are finished."""
    if found.verdict is None or not values or fmean(values) <= 0:
        return None
    b, n = fmean(values), len(values)
    costs = tuple(d / b for d in found.verdict.differences)
    of_b = fmean(costs) * stdev(values) / sqrt(n) / b
    error = sqrt((found.verdict.tuning_error / b) ** 2 + of_b**2)
    interval = Sample.of(costs, error, TTest.worst_of_five(n)).interval(confidence)
    width = study.worlds[found.world].settings["emb_dim"]
    return Cost(width=width, costs=costs, error=error, interval=interval)


def slope_of(costs: Sequence[Cost]) -> Case:
    """Return the slopes of all seeds over log2 of the width, with the errors of all widths."""
    octaves = np.log2([cost.width for cost in costs])
    centred = octaves - octaves.mean()
    weights = centred / (centred @ centred)
    slopes = weights @ np.array([cost.costs for cost in costs])
    error = sqrt(sum((w * c.error) ** 2 for w, c in zip(weights, costs, strict=True)))
    return Case(differences=tuple(slopes.tolist()), margin=0.0, tuning=error)


def _trend_finding(trend: Trend, costs: tuple[Cost, ...], verdict: Verdict | None) -> TrendFinding:
    if verdict is None:
        return TrendFinding(trend=trend, costs=costs)
    word = _in_trends(verdict.word)
    decided = HOLDS if word in trend.expects else FAILS
    answer = word if word == UNDECIDED else decided
    return TrendFinding(trend=trend, costs=costs, verdict=verdict, word=word, answer=answer)


def _in_trends(word: str) -> str:
    """Translate a verdict on differences into one on trends: a cost that gets worse rises."""
    direction, space, rest = word.partition(" ")
    return _CHANGES.get(direction, direction) + space + rest


@dataclass(frozen=True, slots=True, kw_only=True)
class AbilityCurve:
    """An arm's losses above the control's during training, by ability, as means over seeds.

    Attributes:
        tokens: Tokens read in training at each point.
        differences: By ability, the loss above the control's at each point, in nats per such token.
        is_reference: True if it removes a whole part, so that other arms are judged by it.
    """

    arm: str
    tokens: tuple[int, ...]
    differences: Mapping[str, tuple[float, ...]]
    is_reference: bool


def ability_curves(
    study: Study, records: Records, world: str, arms: Sequence[str]
) -> list[AbilityCurve]:
    """Return the curves of arms with all runs; no curves if the text has no abilities."""
    control = _means(plan_of(study, records, world, STANDARD).verdict())
    references = {contrast.reference for _, contrast, _ in study.asked()}
    found: list[AbilityCurve] = []
    for arm in arms:
        course = _means(plan_of(study, records, world, arm).verdict())
        same = study.arm_in(world, arm) != arm or study.arms[arm].rates_of == STANDARD
        if arm == STANDARD or same or [*course] != [*control]:
            continue
        points = [*course]
        names = control[points[0]] if points else {}
        by_name = {n: tuple(course[p][n] - control[p][n] for p in points) for n in names}
        if by_name:
            curve = {"arm": arm, "tokens": tuple(points), "differences": by_name}
            found.append(AbilityCurve(**curve, is_reference=arm in references))
    return found


def _means(verdict: Sequence[Record]) -> dict[int, dict[str, float]]:
    """Return, by tokens read, the mean loss on the tokens of every ability."""
    points = [record.curve for record in verdict]
    return {
        same[0].tokens: {n: fmean(p.abilities[n] for p in same) for n in same[0].abilities}
        for same in zip(*points, strict=False)
    }
