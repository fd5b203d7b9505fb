"""Delay or ceiling: test if longer training makes up for the first cost of an arm.

    d_s(T) = loss of the arm - loss of the standard form, after T steps, seed s
    h_s    = d_s(300) / 2 - d_s(end)
    d(T)   = L(T exp(-p)) - L(T) + c          L: the standard form's mean loss

If h is above 0, longer training makes up for at least half of the first cost. The delay is measured
in steps: straight lines in log T join the standard form's losses at its lengths. The arm's loss at
T equals the line at some T', and the delay is T - T'. The last line splits all of an arm's costs
into a shift p in log T, which is a delay, and a constant c, which longer training keeps.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log

import numpy as np
from jaxtyping import Float64

from studies.decisions import Sample
from studies.findings import UNDECIDED, UNFINISHED, plan_of
from studies.schedule import Records
from studies.shrunk_t import StudentT, Variance, prior_of
from studies.study import STANDARD, Study
from studies.t_tests import holm

START, ENDS = 300, (1200, 2400)
"""Steps."""

_TESTS = ("start", "end", "made up for")
_LEVEL = 0.05
_FEWEST = 3  # lengths that a shift and a constant are fitted to
_SHIFTS = np.linspace(-2, 2, 401)  # in log T
_RESAMPLED = 1000
_EQUAL = 1e-9  # nats^2: fits whose squares differ by less are equally good


Lengths = Mapping[int, Float64[np.ndarray, "2 seeds"]]
"""By steps, losses of the standard form and of an arm; only lengths that both have finished."""

Trained = Mapping[tuple[str, str], Lengths]
"""By text and arm."""


def trained(study: Study, records: Records) -> Trained:
    """Return the losses of all arms on all texts after their finished lengths."""
    texts = dict.fromkeys(world.rpartition("-")[0] for world in study.worlds)
    arms = dict.fromkeys(contrast.arm for _, contrast, _ in study.asked())
    return {pair: _lengths(study, records, *pair) for pair in itertools.product(texts, arms)}


def _lengths(study: Study, records: Records, text: str, arm: str) -> Lengths:
    worlds = {w.settings["steps"]: n for n, w in study.worlds.items() if text in n}
    losses = {
        steps: [plan_of(study, records, world, one).losses() for one in (STANDARD, arm)]
        for steps, world in sorted(worlds.items())
    }
    return {steps: np.array(both) for steps, both in losses.items() if all(both)}


def joined(one: Trained, other: Trained) -> Trained:
    """Return the losses with the seeds of two studies, after the lengths finished in both."""
    pairs = ((pair, one[pair], other[pair]) for pair in one if pair in other)
    return {pair: {n: np.hstack((a[n], b[n])) for n in a if n in b} for pair, a, b in pairs}


def extended(one: Trained, other: Trained) -> Trained:
    """Return the losses at the lengths of two studies, each study with seeds of its own.

    Their seeds stand side by side in order. They are independent, so a mean over them is unbiased.
    """
    return {pair: {**lengths, **other.get(pair, {})} for pair, lengths in one.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """The results of an arm between the first length and an end.

    Attributes:
        samples: The samples of the three tests, with variances shared over the arms of a text;
            empty until both lengths are finished.
        delays: Delays in steps at the end, seed by seed.
        word: A verdict such as "delayed"; `UNFINISHED` until both lengths are finished.
    """

    text: str
    arm: str
    end: int
    samples: Mapping[str, Sample]
    delays: tuple[float, ...] = ()
    word: str = UNFINISHED


def courses(of: Trained, end: int) -> list[Course]:
    """Judge all arms on all texts, from the first length to an end, with corrected verdicts."""
    tests = {pair: _tests(each, end) for pair, each in of.items() if {START, end} <= {*each}}
    judged = [
        Course(text=pair[0], arm=pair[1], end=end, samples=_samples(pair, tests)) for pair in of
    ]
    p_values = {
        f"{one.text}, {one.arm}, {test}": _p(test, one.samples[test]) if one.samples else 1.0
        for one in judged
        for test in _TESTS
    }
    adjusted = holm(p_values)
    for place, one in enumerate(judged):
        if one.samples:
            shown = {
                test: sample.mean
                for test, sample in one.samples.items()
                if adjusted[f"{one.text}, {one.arm}, {test}"] <= _LEVEL
            }
            behind = delays(of[one.text, one.arm], end)
            judged[place] = replace(one, delays=behind, word=word_of(shown))
    return judged


def differences(lengths: Lengths, steps: int) -> Float64[np.ndarray, " seeds"]:
    """Return d after a length, seed by seed."""
    control, arm = lengths[steps]
    return arm - control


def delays(lengths: Lengths, end: int) -> tuple[float, ...]:
    """Return the delay behind the standard form at an end, in steps, seed by seed.

    It needs two lengths, so it is empty with one.
    """
    if len(lengths) < 2:
        return ()
    curves = np.array([control for control, _ in lengths.values()]).T  # [seeds, lengths]
    steps = (
        steps_to(loss, [*zip(lengths, curve, strict=True)])
        for loss, curve in zip(lengths[end][1], curves, strict=True)
    )
    return tuple(end - each for each in steps)


def _tests(lengths: Lengths, end: int) -> dict[str, tuple[float, ...]]:
    """Return the differences whose means are tested, by name."""
    first, last = differences(lengths, START), differences(lengths, end)
    return {
        name: tuple(each.tolist())
        for name, each in zip(_TESTS, (first, last, first / 2 - last), strict=True)
    }


def _samples(
    pair: tuple[str, str], tests: Mapping[tuple[str, str], Mapping[str, Sequence[float]]]
) -> dict[str, Sample]:
    """Return the three tests of an arm, with variances shared over the text's other arms."""
    samples: dict[str, Sample] = {}
    for test in _TESTS if pair in tests else ():
        of_text = [Sample.of(of[test]) for (text, _), of in tests.items() if text == pair[0]]
        prior = prior_of([Variance(one.sd**2, one.n - 1.0) for one in of_text])
        own = Sample.of(tests[pair][test])
        chosen = prior.test(own.n, own.sd**2)
        samples[test] = Sample.of(tests[pair][test], 0.0, chosen, prior.value)
    return samples


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


def steps_to(loss: float, curve: Sequence[tuple[int, float]]) -> float:
    """Return the steps at which a curve reaches a loss: straight lines in log T, extended."""
    pieces = [*itertools.pairwise(curve)]
    (a, of_a), (b, of_b) = next((p for p in pieces if p[1][1] <= loss), pieces[-1])
    return exp(log(a) + (loss - of_a) * (log(b) - log(a)) / (of_b - of_a))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """An arm's costs after all lengths as a shift and a constant.

    Attributes:
        shift: p; positive if the arm is behind by this much in log T.
        shifts: The interval of p, by a bootstrap over seeds.
        constant: c, in nats per token.
        constants: Its interval.
    """

    shift: float
    shifts: tuple[float, float]
    constant: float
    constants: tuple[float, float]


def fit(lengths: Lengths) -> Fit | None:
    """Fit p and c to the mean differences after at least three lengths; None with fewer."""
    seeds = min((both.shape[1] for both in lengths.values()), default=0)
    if len(lengths) < _FEWEST or seeds < 2:
        return None
    drawn = np.random.default_rng(0).integers(seeds, size=(_RESAMPLED, seeds))
    best = _least_squares(lengths, np.arange(seeds))
    resampled = np.array([_least_squares(lengths, chosen) for chosen in drawn])
    # [2 quantiles, (p, c)] -> the ends of both
    shifts, constants = np.quantile(resampled, [_LEVEL / 2, 1 - _LEVEL / 2], axis=0).T.tolist()
    return Fit(shift=best[0], shifts=(*shifts,), constant=best[1], constants=(*constants,))


def _least_squares(lengths: Lengths, seeds: Float64[np.ndarray, " n"]) -> tuple[float, float]:
    """Return the p and c with the least squares for the means of some seeds."""
    at = np.log([*lengths])
    # [lengths, 2, seeds] -> the means, [lengths] each
    control, arm = np.array([*lengths.values()])[:, :, seeds].mean(2).T
    # [shifts, lengths]: straight lines between the lengths, extended beyond them
    shifted = at - _SHIFTS[:, None]
    piece = np.clip(np.searchsorted(at, shifted) - 1, 0, len(at) - 2)
    slopes = np.diff(control) / np.diff(at)
    gained = control[piece] + (shifted - at[piece]) * slopes[piece] - control
    # For each p the best c is the mean of what p leaves.
    left = arm - control - gained
    constants = left.mean(1)
    squares = np.square(left - constants[:, None]).sum(1)
    # Where all lengths fall on one line, p and c are one: the smallest of all equally good p.
    good = np.flatnonzero(squares <= squares.min() + _EQUAL)
    best = good[np.abs(_SHIFTS[good]).argmin()]
    return float(_SHIFTS[best]), float(constants[best])


def mean_delay(course: Course) -> str:
    """Return the mean delay in steps with its interval, Student's over seeds."""
    if not course.delays:
        return ""
    sample = Sample.of(course.delays, 0.0, StudentT(len(course.delays)))
    low, high = sample.interval(1 - _LEVEL)
    return f"{sample.mean:+.0f} ({low:+.0f} to {high:+.0f})"


def costs(of: Trained, steps: int) -> dict[tuple[str, str], tuple[float, tuple[float, float]]]:
    """Return the mean cost after a length with its interval, by text and arm."""
    ended = {pair: lengths for pair, lengths in of.items() if steps in lengths}
    judged = {(one.text, one.arm): one.samples["end"] for one in courses(ended, steps)}
    return {pair: (one.mean, one.interval(1 - _LEVEL)) for pair, one in judged.items()}


def cost(course: Course, test: str) -> str:
    """Return a mean cost in nats with its interval."""
    if not course.samples:
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
