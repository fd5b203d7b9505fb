"""Measure what more seeds of the control are worth, by regression on the control's loss.

    python -m benchmarks.control_regression

The replication trained the control of the first study on 24 more seeds. For the contrasts of each
text, prints the slope, how much smaller the standard errors become if the differences are adjusted
for these losses (mlx_attn/comparison/regression.py), and how many seeds of every arm would have
shrunk them as much; then how many contrasts the test decides with and without. At last, simulated:
the error of three arms with five seeds and 20 more of the control, by the correlation of the losses
of a pair, as a multiple of the error without these 20.
"""

import sys
from dataclasses import replace
from math import sqrt
from statistics import fmean, median, stdev

import numpy as np

from benchmarks.false_words import Design
from benchmarks.judged_again import ANSWERS, cases_of
from mlx_attn.comparison.decisions import Case, judge_all
from mlx_attn.comparison.regression import adjusted
from mlx_attn.comparison.t_tests import FAMILIES
from mlx_attn_studies.book import RecordBook
from mlx_attn_studies.findings import plan_of, rounding_floor
from mlx_attn_studies.follow_ups import follow_up
from mlx_attn_studies.study import STANDARD, the_study


def variance_of(case: Case) -> float:
    """Return the variance of a case's mean, with the error of tuning."""
    return stdev(case.differences) ** 2 / len(case.differences) + case.tuning**2


def simulated(likeness: float) -> float:
    """Return the ratio of the errors with and without 20 more seeds of the control."""
    design = Design(3, 5, is_tuned=True, further=20, likeness=likeness)
    random, squares = np.random.default_rng(2026), np.zeros(2)
    for _ in range(4_000):
        for case in design.cases(FAMILIES["normal"], random).values():
            moved = case.slope * (fmean(case.control) - fmean(case.further))
            mean = fmean(case.differences)
            squares += [mean**2, (mean + moved) ** 2]
    return sqrt(squares[0] / squares[1])


def main() -> None:
    """Adjust, judge, and print."""
    study, again = the_study(), follow_up("replication")
    records = RecordBook(ANSWERS / "records").records
    later = {**records, **RecordBook(ANSWERS / "replication" / "records").records}
    floors = {world: rounding_floor(study, records, world) for world in study.worlds}
    cases = {n: c for n, c in cases_of(study, records, floors).items() if f" {STANDARD} in" in n}
    new: dict[str, Case] = {}
    for world in study.worlds:
        of_world = {name: case for name, case in cases.items() if case.world == world}
        further = tuple(plan_of(again, later, world, STANDARD).losses() or ())
        here = adjusted({n: replace(case, further=further) for n, case in of_world.items()})
        # The error of tuning is the same before and after.
        ratio = median(
            sqrt((variance_of(here[n]) - c.tuning**2) / (variance_of(c) - c.tuning**2))
            for n, c in of_world.items()
        )
        seeds = len(study.protocol.verdict_seeds)
        sys.stdout.write(
            f"{world}: slope {fmean(case.slope for case in here.values()):+.2f}, "
            f"error x {ratio:.2f} with {len(further)} control seeds more, "
            f"as {seeds / ratio**2:.1f} seeds of each arm instead of {seeds}\n"
        )
        new |= here
    for name, judged in (("as measured", cases), ("adjusted", new)):
        words = judge_all(judged, study.protocol.confidence)
        decided = sum(v.word not in ("undecided", "insensitive") for v in words.values())
        sys.stdout.write(f"{name}: the test decides {decided} of {len(words)} contrasts\n")
    for likeness in (0.0, 0.5, 0.9):
        sys.stdout.write(f"correlation {likeness}: error x {simulated(likeness):.2f}\n")


if __name__ == "__main__":
    main()
