"""Count how often equal forms are called better or worse, and find the resolution of a comparison.

    python benchmarks/false_words.py [--draws 2000] [--seed 2026] [--design NAME]

For each design, prints the share of draws in which any arm of equal mean is called better or worse,
in percent: by the test that decides and by the other one, whose word is also printed. Either the
runs of both forms follow a family of distributions, or those of one form only, so that the
differences have its shape; the other arms follow it too, or are normal and vary less. At most 5.5 %
is the aim for the first five families; the last two show the limits of the test.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt

import click
import numpy as np

from mlx_attn.comparison.decisions import (
    Case,
    degrees_lent,
    moderated_t,
    p_values_of,
    worst_of_five,
)
from mlx_attn.comparison.regression import adjusted
from mlx_attn.comparison.t_tests import (
    FAMILIES,
    TTest,
    minimum_detectable_effect,
)

Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
LEVEL = 0.05


def _lognormal(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return random.lognormal(size=shape) - np.exp(0.5)


def _one_in_ten_fails(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.where(random.random(shape) < 0.1, 9.0, -1.0) + 0.2 * random.standard_normal(shape)


ALL: dict[str, Draw] = {**FAMILIES, "lognormal": _lognormal, "1 in 10 fails": _one_in_ten_fails}


@dataclass(frozen=True)
class Design:
    """A comparison of equal forms.

    Attributes:
        both: Whether the runs of the control scatter as those of an arm do.
        quiet: Spread of the other arms, whose differences are then normal; None if they are like
            the first one.
        further: Further seeds of only the control, which the differences are adjusted for. All runs
            have the shape then.
        likeness: The correlation of the losses of a pair, with `further` seeds.
    """

    arms: int
    seeds: int
    is_tuned: bool
    both: bool = False
    quiet: float | None = None
    further: int = 0
    likeness: float = 0.0

    def cases(self, draw: Draw, random: np.random.Generator) -> dict[str, Case]:
        """Return differences of mean 0, with those of tuning."""
        if self.further:
            return self._adjusted(draw, random)
        found: dict[str, Case] = {}
        for arm in range(self.arms):
            is_odd = arm == 0 or self.quiet is None
            groups = [(self.seeds,), *[(3,)] * (3 * self.is_tuned)]
            runs = [self._drawn(draw if is_odd else None, random, shape) for shape in groups]
            found[str(arm)] = Case(
                differences=runs[0], margin=0.0, replicates=tuple(runs[1:]), world="one"
            )
        return found

    def _adjusted(self, draw: Draw, random: np.random.Generator) -> dict[str, Case]:
        """Return the differences to one control, adjusted for its loss."""
        groups = (self.seeds, *[3] * (3 * self.is_tuned), self.further)
        *control, further = (draw(random, (n,)) for n in groups)
        found: dict[str, Case] = {}
        for arm in range(self.arms):
            losses = [
                self.likeness * c + sqrt(1 - self.likeness**2) * draw(random, c.shape)
                for c in control
            ]
            pairs = [tuple((a - c).tolist()) for a, c in zip(losses, control, strict=True)]
            found[str(arm)] = Case(
                differences=pairs[0],
                margin=0.0,
                replicates=tuple(pairs[1:]),
                world="one",
                control=tuple(control[0].tolist()),
                control_replicates=tuple(tuple(c.tolist()) for c in control[1:]),
                further=tuple(further.tolist()),
            )
        return adjusted(found)

    def _drawn(
        self, draw: Draw | None, random: np.random.Generator, shape: tuple[int, ...]
    ) -> tuple[float, ...]:
        if draw is None:
            return tuple(((self.quiet or 0.0) * random.standard_normal(shape)).tolist())
        of_control = draw(random, shape) if self.both else 0.0
        return tuple((draw(random, shape) - of_control).tolist())


DESIGNS = {
    "one arm, 5 seeds, no tuning (demo)": Design(1, 5, is_tuned=False),
    "one arm, 5 seeds": Design(1, 5, is_tuned=True),
    "three arms, 5 seeds (default)": Design(3, 5, is_tuned=True),
    "the same, both forms": Design(3, 5, is_tuned=True, both=True),
    "the same, two arms normal, a third as wide": Design(3, 5, is_tuned=True, quiet=1 / 3),
    "three arms, 5 seeds, no tuning": Design(3, 5, is_tuned=False),
    "the same, two normal, a tenth as wide": Design(3, 5, is_tuned=False, quiet=0.1),
    "seven arms, 12 seeds": Design(7, 12, is_tuned=True),
    "one arm, 5 seeds and 20 of the control": Design(1, 5, is_tuned=True, further=20),
    "three arms, 5 seeds and 20 of the control": Design(3, 5, is_tuned=True, further=20),
    "three arms, 5 seeds and 5 of the control": Design(3, 5, is_tuned=True, further=5),
    "nine arms, 5 seeds and 20 of the control": Design(9, 5, is_tuned=True, further=20),
}


def false_words(draw: Draw, design: Design, draws: int, seed: Sequence[int]) -> list[float]:
    """Return the shares of draws with a false word, by both tests."""
    random, wrong = np.random.default_rng(seed), np.zeros(2)
    for _ in range(draws):
        cases = design.cases(draw, random)
        for place, test in enumerate((moderated_t, worst_of_five)):
            p_values = p_values_of(cases, test(cases)).values()
            wrong[place] += any(p <= LEVEL for _, p, _ in p_values)
    return (wrong / draws).tolist()


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--design", default="", help="only designs with this in their name")
    options = parser.parse_args()
    click.echo(
        "critical |T|, one arm: worst of five; the test that decides, without and with tuning"
    )
    for n in (3, 4, 5, 8, 12):
        tests = TTest.worst_of_five(n), TTest(n), TTest(n, degrees_lent(3, 1))
        click.echo(f"  {n:2} seeds " + "".join(f"{test.critical(LEVEL):6.2f}" for test in tests))
    click.echo(
        "resolved by 5 seeds, sd 0.010, power 0.8, in nats: worst of five, no tuning, tuning"
    )
    for arms in (1, 3):
        tests = [TTest.worst_of_five(5), *(TTest(5, degrees_lent(k, arms)) for k in (1, 3))]
        resolved = (minimum_detectable_effect(0.010, test, arms=arms) for test in tests)
        click.echo(f"  {arms} arms " + "".join(f"{one:8.4f}" for one in resolved))
    click.echo("false words, %: the test that decides / worst of five")
    click.echo(" | ".join(("design", *ALL)))
    for row, (name, design) in enumerate(DESIGNS.items()):
        if options.design not in name:
            continue
        shares = [
            false_words(draw, design, options.draws, (options.seed, row, place))
            for place, draw in enumerate(ALL.values())
        ]
        click.echo(" | ".join((name, *(f"{100 * t:.1f} / {100 * w:.1f}" for t, w in shares))))


if __name__ == "__main__":
    main()
