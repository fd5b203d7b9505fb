"""Delay or ceiling: test if longer training makes up for the first cost of an arm.

    d_s(T) = loss of the arm - loss of the standard form, after T steps, seed s
    h_s    = d_s(300) / 2 - d_s(end)

If h is above 0, longer training makes up for at least half of the first cost. The delay is measured
in steps: straight lines in log T join the standard form's losses at its lengths. The arm's loss at
T equals the line at some T', and the delay is T - T'.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import fmean

import numpy as np

from mlx_attn.comparison.decisions import Sample
from mlx_attn.comparison.t_tests import holm
from mlx_attn_studies.findings import UNDECIDED, UNFINISHED, Finding, plan_of
from mlx_attn_studies.schedule import Records
from mlx_attn_studies.shrunk_t import StudentT, Variance, prior_of
from mlx_attn_studies.study import STANDARD, Study

START, ENDS = 300, (1200, 2400)
"""Steps."""

_TESTS = ("start", "end", "made up for")
_LEVEL = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """The results of an arm between the first length and an end.

    Attributes:
        costs: Differences at both lengths, seed by seed; empty before they are finished.
        samples: The samples of the three tests, with variances shared over the arms of a text.
        delays: Delays in steps at the end, seed by seed.
        word: A verdict such as "delayed"; `UNFINISHED` until both lengths are finished.
    """

    text: str
    arm: str
    end: int
    costs: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    samples: Mapping[str, Sample] | None = None
    delays: tuple[float, ...] = ()
    word: str = UNFINISHED


def courses(study: Study, records: Records, found: Sequence[Finding], end: int) -> list[Course]:
    """Return all arms on all texts, from the first length to an end, with corrected verdicts."""
    by = {(f.contrast.arm, f.world): f.verdict.differences for f in found if f.verdict}
    texts = [*dict.fromkeys(world.rpartition("-")[0] for world in study.worlds)]
    arms = [*dict.fromkeys(f.contrast.arm for f in found)]
    tests: dict[tuple[str, str], dict[str, tuple[float, ...]]] = {}
    for text in texts:
        for arm in arms:
            first, last = by.get((arm, f"{text}-{START}")), by.get((arm, f"{text}-{end}"))
            if first and last:
                h = tuple(a / 2 - b for a, b in zip(first, last, strict=True))
                tests[text, arm] = dict(zip(_TESTS, (first, last, h), strict=True))
    samples = {pair: _samples(pair[0], tests, pair) for pair in tests}
    p_values = {f"{t}, {a}, {test}": 1.0 for t in texts for a in arms for test in _TESTS}
    for (text, arm), of in samples.items():
        for test, sample in of.items():
            p_values[f"{text}, {arm}, {test}"] = _p(test, sample)
    adjusted = holm(p_values)
    return [
        Course(text=text, arm=arm, end=end)
        if (text, arm) not in tests
        else Course(
            text=text,
            arm=arm,
            end=end,
            costs=(tests[text, arm]["start"], tests[text, arm]["end"]),
            samples=samples[text, arm],
            delays=delays(study, records, text, arm, end),
            word=word_of(
                {
                    test: sample.mean
                    for test, sample in samples[text, arm].items()
                    if adjusted[f"{text}, {arm}, {test}"] <= _LEVEL
                }
            ),
        )
        for text in texts
        for arm in arms
    ]


def _samples(
    text: str,
    tests: Mapping[tuple[str, str], Mapping[str, Sequence[float]]],
    pair: tuple[str, str],
) -> dict[str, Sample]:
    """Return the three tests of an arm, with variances shared over the text's other arms."""
    found: dict[str, Sample] = {}
    for test in _TESTS:
        of_text = [Sample.of(of[test]) for (where, _), of in tests.items() if where == text]
        prior = prior_of([Variance(one.sd**2, one.n - 1.0) for one in of_text])
        own = Sample.of(tests[pair][test])
        chosen = prior.test(own.n, own.sd**2)
        found[test] = Sample.of(tests[pair][test], 0.0, chosen, prior.value)
    return found


def _p(test: str, sample: Sample) -> float:
    if test == _TESTS[2]:  # one-sided: longer training makes up for at least half
        return float(sample.test.one_sided(sample.statistic(sample.mean)))
    return sample.p_difference()


def word_of(shown: Mapping[str, float]) -> str:
    """Return the verdict for the tests that succeeded, by name with their means."""
    start, end = shown.get("start", 0.0), shown.get("end", 0.0)
    if start < 0 < end:
        return "sooner but worse"
    words = ["delayed"] * (start > 0 and shown.get("made up for", 0.0) > 0)
    words += ["worse at the end"] * (end > 0)
    return ", and ".join(words) or UNDECIDED


def delays(study: Study, records: Records, text: str, arm: str, end: int) -> tuple[float, ...]:
    """Return an arm's delay behind the standard form at an end, in steps, by seed."""
    lengths = sorted(world.settings["steps"] for w, world in study.worlds.items() if text in w)
    known = [
        (steps, losses)
        for steps in lengths
        if (losses := plan_of(study, records, f"{text}-{steps}", STANDARD).losses())
    ]
    of_arm = plan_of(study, records, f"{text}-{end}", arm).losses() or []
    curves = [[(steps, losses[seed]) for steps, losses in known] for seed in range(len(of_arm))]
    return tuple(end - steps_to(loss, curve) for loss, curve in zip(of_arm, curves, strict=True))


def steps_to(loss: float, curve: Sequence[tuple[int, float]]) -> float:
    """Return the steps at which a curve reaches a loss: straight lines in log T, extended."""
    pieces = [*itertools.pairwise(curve)]
    (a, of_a), (b, of_b) = next((p for p in pieces if p[1][1] <= loss), pieces[-1])
    return exp(log(a) + (loss - of_a) * (log(b) - log(a)) / (of_b - of_a))


def mean_delay(course: Course) -> str:
    """Return the mean delay in steps with its interval, Student's over seeds."""
    if not course.delays:
        return ""
    sample = Sample.of(course.delays, 0.0, StudentT(len(course.delays)))
    low, high = sample.interval(1 - _LEVEL)
    return f"{fmean(course.delays):+.0f} ({low:+.0f} to {high:+.0f})"


def cost(course: Course, test: str) -> str:
    """Return a mean cost in nats with its interval."""
    if course.samples is None:
        return ""
    sample = course.samples[test]
    low, high = np.array(sample.interval(1 - _LEVEL))
    return f"{sample.mean:+.3f} ({low:+.3f} to {high:+.3f})"


def statement(found: Sequence[Course]) -> str:
    """Judge the registered statement at an end, for the arms that have reached it."""
    against = [
        f"{one.arm} on {one.text}"
        for one in found
        if one.samples and one.samples["start"].mean > 0 and one.word == "worse at the end"
    ]
    if against:
        return (
            f"does not hold: worse at the end and not shown to be delayed are {', '.join(against)}"
        )
    turns = any(
        (one.arm, one.text, one.word) == ("one-head", "shakespeare", "sooner but worse")
        for one in found
    )
    if any(one.word == UNFINISHED for one in found):
        return "is not decided: not all arms are finished"
    return "holds" if turns else "does not hold: one head on shakespeare is not sooner but worse"
