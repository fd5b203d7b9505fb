"""Adjust differences for the loss of a control that was trained with more seeds than the arms.

    d_i - b (c_i - C)

An arm's difference d_i is often large because the control's loss c_i happened to be small. C is the
control's mean loss over M further seeds, which form no pair, and b the slope of the differences
over the control's loss (control variates; Deng et al., 2013, call it CUPED). With b = 0 runs are
compared in pairs; with b = -1 the arm's mean is compared with C, as if there were no pairs. For n
pairs the best b lies between:

    b = M / (n + M) * slope,    -1 <= slope <= 0

The slope is fitted to pairs that the arm's mean does not use, of the other arms and of the tuning
seeds. So it cannot follow the noise of the differences that it adjusts, and their tests keep their
level (`benchmarks/false_words.py`). The error of C, b sd(c) / sqrt(M), adds to that of tuning.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import hypot, sqrt
from statistics import fmean, stdev

import numpy as np
from jaxtyping import Float64

from mlx_attn.comparison.decisions import Case


def adjusted(cases: Mapping[str, Case]) -> dict[str, Case]:
    """Return cases of one control, with all differences adjusted for its loss.

    A case without further losses of the control stays as it is, and so does one without other runs
    that show the slope.
    """
    of_tuning = sum(map(_of_tuning, cases.values()), np.zeros(2))
    of_arms = {name: _sums_of(case.differences, case.control) for name, case in cases.items()}
    all_arms = sum(of_arms.values(), np.zeros(2))
    return {
        name: _adjusted(case, _slope(of_tuning + all_arms - of_arms[name]))
        for name, case in cases.items()
    }


def _adjusted(case: Case, slope: float) -> Case:
    n, m = len(case.differences), len(case.further)
    if not slope or not m:
        return case
    b, mean = m / (n + m) * slope, fmean(case.further)
    # All runs of the control tell its spread best.
    of_mean = abs(b) * stdev([*case.control, *case.further]) / sqrt(m)
    replicates = zip(case.replicates, case.control_replicates, strict=True)
    return replace(
        case,
        differences=_moved(case.differences, case.control, b, mean),
        tuning=hypot(case.tuning, of_mean),
        # Only their spread counts, which does not depend on the mean.
        replicates=tuple(_moved(*group, b, mean) for group in replicates),
        slope=b,
    )


def _moved(
    differences: Iterable[float], control: Iterable[float], b: float, mean: float
) -> tuple[float, ...]:
    return tuple(d - b * (c - mean) for d, c in zip(differences, control, strict=True))


def _of_tuning(case: Case) -> Float64[np.ndarray, "2"]:
    groups = zip(case.replicates, case.control_replicates, strict=True)
    return sum((_sums_of(*group) for group in groups), np.zeros(2))


def _sums_of(differences: Sequence[float], control: Sequence[float]) -> Float64[np.ndarray, "2"]:
    """Return sum((d - mean d) (c - mean c)) and sum((c - mean c)^2)."""
    if not control:
        return np.zeros(2)
    # [n]
    centred = np.array(control) - np.mean(control)
    return np.array([np.array(differences) @ centred, centred @ centred])


def _slope(sums: Float64[np.ndarray, "2"]) -> float:
    """Return the least-squares slope within its limits; 0 without a spread of the control."""
    products, squares = sums
    return float(np.clip(products / squares, -1, 0)) if squares > 0 else 0.0
