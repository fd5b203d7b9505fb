"""Count how often equal forms are called better or worse, and find the resolution of a comparison.

    python benchmarks/false_words.py --groups 1000

Simulates two kinds of equal forms. In the first, the losses of both forms follow the family of
distributions. In the second, their difference follows it, as if only one form had failed runs.
`mlx_attn.comparison.decisions.judge` gives the verdicts at 95 %, corrected for the arms of a group.
"""

import argparse
from collections.abc import Callable

import click
import numpy as np

from mlx_attn.comparison.decisions import Case, judge_all
from mlx_attn.comparison.statistics import critical_t, minimum_detectable_effect
from mlx_attn.comparison.worst_of_five import FAMILIES, critical

Draw = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]

GROUPS = ((1, 3), (1, 5), (3, 5), (7, 12), (14, 12), (7, 24))
"""Arms and seeds."""


def _lognormal(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return np.exp(random.standard_normal(shape)) - np.exp(0.5)


def _one_in_ten_fails(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return np.where(random.random(shape) < 0.1, 9.0, -1.0) + 0.2 * random.standard_normal(shape)


ALL: dict[str, Draw] = {**FAMILIES, "lognormal": _lognormal, "1 in 10 fails": _one_in_ten_fails}


def false_words(draw: Draw, arms: int, n: int, groups: int, both: bool) -> tuple[float, float]:
    """Return the shares of groups with a false verdict, by moderated t and by worst of five."""
    random, wrong = np.random.default_rng([arms, n]), np.zeros(2)
    for _ in range(groups):
        drawn = draw(random, (arms, n)) - (draw(random, (arms, n)) if both else 0)
        cases = {
            str(k): Case(differences=tuple(x), margin=0.0) for k, x in enumerate(drawn.tolist())
        }
        found = judge_all(cases).values()
        for place, words in enumerate(([v.word for v in found], [v.other_word for v in found])):
            wrong[place] += any(word in ("better", "worse") for word in words)
    of_t, of_worst = (wrong / groups).tolist()
    return of_t, of_worst


def main() -> None:
    """Simulate, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=1000)
    groups = parser.parse_args().groups
    click.echo("critical |t|, one arm, 95 %: worst of five, moderated t without anything lent")
    for n in (3, 4, 5, 8, 12):
        click.echo(f"  {n:2} seeds  {critical(0.05, n):5.2f}  {critical_t(0.05, n - 1):5.2f}")
    click.echo("resolved by 5 seeds, sd 0.010, 3 arms, power 0.8, degrees of freedom lent")
    for lent in (0, 4, 8, 12, 18):
        resolved = minimum_detectable_effect(0.010, 5, arms=3, prior_df=lent)
        click.echo(f"  {lent:2}  {resolved:.4f} nats")
    for both in (True, False):
        click.echo(f"false words, %; {'both sides' if both else 'the difference'} of the family")
        heads = (f"{a} x {n}".rjust(11) for a, n in GROUPS)
        click.echo(" ".join(("  arms x seeds, t / worst".ljust(32), *heads)))
        for name, draw in ALL.items():
            cells = (false_words(draw, a, n, groups, both) for a, n in GROUPS)
            row = (f"{100 * t:4.1f} / {100 * w:4.1f}" for t, w in cells)
            click.echo(" ".join((f"  {name}".ljust(32), *row)))


if __name__ == "__main__":
    main()
