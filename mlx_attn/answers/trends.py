"""How a cost changes with the width, in tokens: does it vanish, stay or grow?

    p_s(C) = d_s(C) / b(C)                                    d: the arm's loss above the control's
    b(C)   = nats that the control gains where its tokens are multiplied by e, at width C
    g_s    = slope of the least-squares line of p_s over log2 C

Two tests of g, that its mean is 0 and that it lies within the margin, are corrected (Holm) for all
trends of the study; those that are not finished count with p = 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev

import numpy as np

from mlx_attn.answers.findings import (
    FAILS,
    HOLDS,
    UNDECIDED,
    UNFINISHED,
    Finding,
    findings,
    token_values,
)
from mlx_attn.answers.schedule import Records
from mlx_attn.answers.study import Study, Trend
from mlx_attn.comparison.decisions import Sample, word_of
from mlx_attn.comparison.statistics import holm, one_sided, two_sided

_WORDS = {"equivalent": "stays", "worse": "rises", "better": "falls"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What an arm costs at one width.

    Attributes:
        width: The residual stream's, C.
        costs: p by seed; positive where the control could do with fewer tokens.
        error: Standard error that tuning and b add to their mean.
        interval: Of the mean, for this width alone, uncorrected.
    """

    width: int
    costs: tuple[float, ...]
    error: float
    interval: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendFinding:
    """What is known of a trend.

    Attributes:
        costs: At each width that is finished, the narrowest first.
        slope: Mean change of p with each doubling; None before all widths are finished.
        interval: Of the slope, for this trend alone, uncorrected.
        p_change: Corrected over all trends; `p_same` likewise.
        word: One of `study.TRENDS`; "" while it is not finished.
        answer: One of the words of `findings`.
    """

    trend: Trend
    costs: tuple[Cost, ...]
    slope: float | None = None
    interval: tuple[float, float] | None = None
    p_change: float = 1.0
    p_same: float = 1.0
    word: str = ""
    answer: str = UNFINISHED


def trend_findings(study: Study, records: Records) -> list[TrendFinding]:
    """Every trend of a study, in its order."""
    found, confidence = findings(study, records), study.protocol.confidence
    values = {world: token_values(study, records, world) for world in study.worlds}
    rows: list[tuple[Trend, tuple[Cost, ...], Sample | None]] = []
    for trend in study.trends:
        of_arm = [f for f in found if f.contrast.arm == trend.arm]
        known = (_cost(study, f, values[f.world], confidence) for f in of_arm)
        costs = tuple(sorted((c for c in known if c), key=lambda cost: cost.width))
        whole = len(costs) == len(study.worlds)
        rows.append((trend, costs, slope_of(costs) if whole else None))
    p_values = {trend.arm: _p_values(sample, trend.margin) for trend, _, sample in rows}
    changed, same = (holm({arm: p[k] for arm, p in p_values.items()}) for k in (0, 1))
    return [_finding(*row, changed[row[0].arm], same[row[0].arm], confidence) for row in rows]


def _cost(study: Study, found: Finding, values: Sequence[float], confidence: float) -> Cost | None:
    """A finding in tokens; None while it or the worth of tokens is not finished."""
    if found.measured is None or not values or fmean(values) <= 0:
        return None
    b, n = fmean(values), len(values)
    costs = tuple(d / b for d in found.measured.differences)
    of_b = fmean(costs) * stdev(values) / sqrt(n) / b
    error = sqrt((found.measured.tuning / b) ** 2 + of_b**2)
    interval = Sample.of(costs, error).interval(confidence)
    width = study.worlds[found.world].settings["emb_dim"]
    return Cost(width=width, costs=costs, error=error, interval=interval)


def slope_of(costs: Sequence[Cost]) -> Sample:
    """The slopes of all seeds over log2 of the width, with the errors of all widths."""
    octaves = np.log2([cost.width for cost in costs])
    centred = octaves - octaves.mean()
    weights = centred / (centred @ centred)
    slopes = weights @ np.array([cost.costs for cost in costs])
    error = sqrt(sum((w * c.error) ** 2 for w, c in zip(weights, costs, strict=True)))
    return Sample.of(slopes.tolist(), error)


def _p_values(sample: Sample | None, margin: float) -> tuple[float, float]:
    if sample is None:
        return 1.0, 1.0
    nearer = sample.t(margin - abs(sample.mean))
    return float(two_sided(sample.t(sample.mean), sample.n)), float(one_sided(nearer, sample.n))


def _finding(
    trend: Trend,
    costs: tuple[Cost, ...],
    sample: Sample | None,
    p_change: float,
    p_same: float,
    confidence: float,
) -> TrendFinding:
    if sample is None:
        return TrendFinding(trend=trend, costs=costs)
    level = 1 - confidence
    word = _in_trends(word_of(sample.mean, p_change <= level, p_same <= level))
    decided = HOLDS if word in trend.expects else FAILS
    return TrendFinding(
        trend=trend,
        costs=costs,
        slope=sample.mean,
        interval=sample.interval(confidence),
        p_change=p_change,
        p_same=p_same,
        word=word,
        answer=word if word == UNDECIDED else decided,
    )


def _in_trends(word: str) -> str:
    """A word of differences as one of trends: a cost that gets worse rises."""
    direction, space, rest = word.partition(" ")
    return _WORDS.get(direction, direction) + space + rest
