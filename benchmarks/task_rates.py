"""Compare rules that choose the learning rate for a task, which a training solves or does not.

    python benchmarks/task_rates.py

Simulated: five factors two apart and three tuning seeds, as in `compare`. The probability of
solving the task is a bell around a best rate; a training that solves it ends near 0 nats, one that
does not near 1.5, with smaller rates a little lower. For each rule, prints the probability of
solving the task with the chosen factor, as a share of the probability with the best one.
"""

import sys
from collections.abc import Callable

import numpy as np

DRAWS, SEEDS = 20_000, 3
OCTAVES = np.arange(-2.0, 3.0)

RULES: dict[str, Callable[[np.ndarray, np.ndarray], int]] = {
    "mean loss": lambda losses, solved: int(losses.mean(0).argmin()),
    "median loss": lambda losses, solved: int(np.median(losses, 0).argmin()),
    "most solved, then mean loss": lambda losses, solved: int(
        np.lexsort((losses.mean(0), -solved.sum(0)))[0]
    ),
}


def shares(width: float, peak: float) -> dict[str, float]:
    """Return the mean share by rule, for a bell of this width in octaves and of this height."""
    random, found = np.random.default_rng(0), dict.fromkeys(RULES, 0.0)
    for _ in range(DRAWS):
        chance = peak * np.exp(-0.5 * ((OCTAVES - random.uniform(-1.5, 1.5)) / width) ** 2)
        # [seeds, factors]
        solved = random.random((SEEDS, len(OCTAVES))) < chance
        failed = 1.5 + 0.25 * OCTAVES + 0.3 * random.standard_normal(solved.shape)
        losses = np.where(solved, 0.01 * random.lognormal(size=solved.shape), failed)
        for name, rule in RULES.items():
            found[name] += chance[rule(losses, solved)] / chance.max() / DRAWS
    return found


def main() -> None:
    """Print a row for each task."""
    sys.stdout.write(f"width, chance with the best rate | {' | '.join(RULES)}\n")
    for width in (0.7, 1.2, 2.0):
        for peak in (0.95, 0.7, 0.4):
            row = " | ".join(f"{share:.3f}" for share in shares(width, peak).values())
            sys.stdout.write(f"{width}, {peak} | {row}\n")


if __name__ == "__main__":
    main()
