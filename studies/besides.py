"""The results of the other studies: the start, chapter 5, recall, states, other forms."""

from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from math import exp, log
from statistics import mean

from studies.mixed import Estimate, estimate
from studies.trainings import STANDARD, Training, differences, losses, read


@cache
def costs(name: str) -> dict[tuple[str, str], Estimate]:
    """Return the cost of each arm in each world of a data set, over seeds."""
    of, found = losses(read(name)), dict[tuple[str, str], Estimate]()
    for study, world, arm in of:
        by_seed = [] if arm == STANDARD else differences(of, study, world, arm)
        if len(by_seed) > 1:
            found[arm, world] = estimate([by_seed], 0.0)
    return found


def chapter5() -> dict[str, tuple[float, int]]:
    """Return the lowest loss of each form's one training at the book's size, and its step."""
    return {t.arm: min((loss, step) for step, loss in t.curve) for t in read("chapter5-gpt2")}


def solved(trainings: Iterable[Training], world: str, arm: str) -> str:
    """Return how many trainings of an arm solved a task, as "4 of 4"."""
    done = [t.steps_to_solve[1] for t in trainings if (t.world, t.arm) == (world, arm)]
    return f"{sum(done)} of {len(done)}"


def ratios(trainings: Iterable[Training], arm: str) -> list[float]:
    """Return how many times the standard form's steps an arm needs to solve a task, by world.

    A geometric mean over seeds, and the smallest first. A training that never solved it counts with
    all of its steps, so that the ratio is then at least this.
    """
    steps = defaultdict[tuple[str, str], dict[int, float]](dict)
    for t in trainings:
        steps[t.world, t.arm][t.seed] = log(t.steps_to_solve[0])
    worlds = [world for world, of in steps if of == arm]
    return sorted(
        exp(mean(steps[world, arm][s] - one for s, one in steps[world, STANDARD].items()))
        for world in worlds
    )
