"""The results of the other studies: the start, chapter 5, recall, states, other forms."""

from collections import defaultdict
from collections.abc import Iterable
from math import exp, log
from statistics import mean

from studies.mixed import Estimate, estimate
from studies.trainings import STANDARD, Training, differences, losses, read


def estimates(name: str) -> dict[tuple[str, str], Estimate]:
    """Return the cost of each arm in each world of a data set, over seeds."""
    trainings = read(name)
    of, found = losses(trainings), dict[tuple[str, str], Estimate]()
    for study, world, arm in of:
        by_seed = [] if arm == STANDARD else differences(of, study, world, arm)
        if len(by_seed) > 1:
            found[arm, world] = estimate([by_seed], 0.0)
    return found


def lowest(trainings: Iterable[Training]) -> dict[str, tuple[float, int, float]]:
    """Return the lowest loss of each arm's one training, its step, and the loss at the end."""
    return {t.arm: (*t.lowest, t.loss or 0.0) for t in trainings}


def solved(trainings: Iterable[Training]) -> dict[str, dict[str, tuple[int, int]]]:
    """Return, by world and arm, how many trainings solved their task, and how many there are."""
    found = defaultdict[str, dict[str, tuple[int, int]]](dict)
    for training in trainings:
        done, all_ = found[training.world].get(training.arm, (0, 0))
        found[training.world][training.arm] = done + training.steps_to_solve[1], all_ + 1
    return dict(found)


def ratios(trainings: Iterable[Training], arm: str) -> dict[str, float]:
    """Return by world how many times the standard form's steps an arm needs to solve its task.

    A geometric mean over seeds. A training that never solved it counts with all of its steps, so
    that the ratio is then at least this.
    """
    steps = defaultdict[tuple[str, str], dict[int, float]](dict)
    for t in trainings:
        steps[t.world, t.arm][t.seed] = log(t.steps_to_solve[0])
    worlds = [world for world, of in steps if of == arm]
    return {
        world: exp(mean(steps[world, arm][s] - one for s, one in steps[world, STANDARD].items()))
        for world in worlds
    }
