"""What more seeds of the control are worth, by regression on the control's loss.

    python -m benchmarks.control_regression

An arm's difference d_i to the control is often large because the control's loss c_i was small.
With the mean C of the control over M seeds more, an adjusted difference is

    d_i - b (c_i - C)        error of the mean: sqrt(var(d - b c) / n + b^2 var(c) / M)

(control variates; CUPED). The slope b is fitted to all differences of a text, scaled by M / (n + M)
because C has an error of its own. For the contrasts of the first study, whose control the
replication trained on 24 more seeds, this prints the ratio of the two standard errors, how many
contrasts a moderated t decides with each, and how many seeds of every arm would shrink the errors
as much.
"""

import sys
from collections import defaultdict
from dataclasses import replace
from math import hypot, sqrt
from statistics import fmean, median, stdev

import numpy as np

from benchmarks.judged_again import ANSWERS, cases_of
from mlx_attn.comparison.decisions import Case, judge_all
from mlx_attn_studies.book import RecordBook
from mlx_attn_studies.findings import plan_of, rounding_floor
from mlx_attn_studies.follow_ups import follow_up
from mlx_attn_studies.study import STANDARD, the_study


def adjusted(case: Case, control: np.ndarray, more: np.ndarray, slope: float) -> Case:
    """Return a case whose differences are adjusted for the control's loss, seed by seed."""
    moved = np.array(case.differences) - slope * (control - more.mean())
    error = abs(slope) * float(more.std(ddof=1)) / sqrt(len(more))
    return replace(case, differences=tuple(moved.tolist()), tuning=hypot(case.tuning, error))


def error_of(case: Case) -> float:
    """Return the standard error of a case's mean, without the error of tuning."""
    return stdev(case.differences) / sqrt(len(case.differences))


def main() -> None:
    """Adjust, judge, and print."""
    study, again = the_study(), follow_up("replication")
    records = RecordBook(ANSWERS / "records").records
    later = {**records, **RecordBook(ANSWERS / "replication" / "records").records}
    floors = {world: rounding_floor(study, records, world) for world in study.worlds}
    cases = {n: c for n, c in cases_of(study, records, floors).items() if f" {STANDARD} in" in n}
    controls = {
        world: [
            np.array(plan_of(*which, world, STANDARD).losses())
            for which in ((study, records), (again, later))
        ]
        for world in study.worlds
    }
    of_world: dict[str, list[str]] = defaultdict(list)
    for name, case in cases.items():
        of_world[case.world].append(name)
    new: dict[str, Case] = {}
    for world, names in of_world.items():
        control, more = controls[world]
        centred = control - control.mean()
        slopes = [np.array(cases[n].differences) @ centred / (centred @ centred) for n in names]
        slope = fmean(slopes) * len(more) / (len(control) + len(more))
        here = {name: adjusted(cases[name], control, more, slope) for name in names}
        own = abs(slope) * float(more.std(ddof=1)) / sqrt(len(more))
        ratio = median(hypot(error_of(here[n]), own) / error_of(cases[n]) for n in names)
        seeds = len(control) / ratio**2
        gain = f"error x {ratio:.2f} with {len(more)} control seeds more"
        sys.stdout.write(
            f"{world}: slope {slope:+.2f}, {gain}, "
            f"as {seeds:.1f} seeds of each arm instead of {len(control)}\n"
        )
        new |= here
    for name, judged in (("as measured", cases), ("adjusted", new)):
        words = judge_all(judged, study.protocol.confidence)
        decided = sum(v.word not in ("undecided", "insensitive") for v in words.values())
        sys.stdout.write(f"{name}: a moderated t decides {decided} of {len(words)} contrasts\n")


if __name__ == "__main__":
    main()
