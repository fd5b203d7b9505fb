"""What was measured in the course of trainings, brought onto common steps and seeds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mlx_attn.lab.compare.result import ArmResult, Point, Ranks, Training

MOST = 60
"""Most points of a drawn curve."""

Place = Callable[[Point], float]
Value = Callable[[Point], float | None]


@dataclass(frozen=True, slots=True)
class Series:
    """One number of all seeds of an arm.

    Attributes:
        at: Steps or seconds, rising.
        values: [seed, place].
    """

    at: np.ndarray
    values: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        """Over seeds."""
        return self.values.mean(axis=0)


def curves(arm: ArmResult, place: Place, value: Value) -> Series | None:
    """A number of an arm's validations; None where it was not measured.

    Seeds that were validated elsewhere, as under a budget of seconds, are interpolated to the
    places of the first, up to where the shortest ends.
    """
    lines = [_line(training.curve, place, value) for training in arm.trainings]
    return _together([line for line in lines if len(line[0])])


def rank_series(arm: ArmResult, value: Callable[[Ranks], float]) -> Series | None:
    """A number of an arm's matrices; None where it was not measured."""
    lines = [_rank_line(training, value) for training in arm.trainings]
    return _together([line for line in lines if len(line[0])])


def paired(arm: ArmResult, control: ArmResult, place: Place) -> Series | None:
    """The arm's loss less the control's, pair by pair of trainings with the same seed."""
    others = {training.seed: training for training in control.trainings}
    pairs = [(one, others[one.seed]) for one in arm.trainings if one.seed in others]
    return _together([_difference(one, other, place) for one, other in pairs])


def _difference(one: Training, other: Training, place: Place) -> tuple[np.ndarray, np.ndarray]:
    at, losses = _line(one.curve, place, _loss)
    elsewhere, others = _line(other.curve, place, _loss)
    if not (len(at) and len(elsewhere)):
        return at[:0], losses[:0]
    inside = (at >= elsewhere[0]) & (at <= elsewhere[-1])
    return at[inside], (losses - np.interp(at, elsewhere, others))[inside]


def _loss(point: Point) -> float:
    return point.val_loss


def _line(points: Sequence[Point], place: Place, value: Value) -> tuple[np.ndarray, np.ndarray]:
    known = [(float(place(point)), v) for point in points if (v := value(point)) is not None]
    return _columns(known)


def _rank_line(
    training: Training, value: Callable[[Ranks], float]
) -> tuple[np.ndarray, np.ndarray]:
    return _columns([(float(ranks.step), value(ranks)) for ranks in training.ranks])


def _columns(pairs: Sequence[tuple[float, float]]) -> tuple[np.ndarray, np.ndarray]:
    at, values = np.array(pairs, float).reshape(-1, 2).T
    return at, values


def _together(lines: Sequence[tuple[np.ndarray, np.ndarray]]) -> Series | None:
    """All lines at the places of the first, as far as all of them reach."""
    lines = [line for line in lines if len(line[0])]
    if not lines:
        return None
    first = max(at[0] for at, _ in lines)
    last = min(at[-1] for at, _ in lines)
    at = lines[0][0]
    at = at[(at >= first) & (at <= last)]
    at = at[np.unique(np.linspace(0, len(at) - 1, MOST).astype(int))] if len(at) > MOST else at
    return Series(at, np.array([np.interp(at, *line) for line in lines])) if len(at) else None
