"""Simulate how often one run lies to a loop that tries changes, and how often `compare` does.

    python benchmarks/one_run.py

This rule was written before anything was computed. Only a first look was known: at 4800 steps, with
a standard deviation of .0084, one run each keeps about 4.4 of 100 and believes in .021 nats.

A night. 100 ideas are tried, one after another, on shakespeare with the book's start, after 300 and
after 4800 steps. An idea that does nothing is a null: its runs are runs of the same form with other
seeds. 2000 nights are drawn, with a fixed seed, for each rule.

Losses. At 300 steps they are drawn with replacement from the 24 trainings of the study
`fresh-seeds`: the book's form around its mean, for a single run; and, for pairs, the differences by
seed of the forms without `out_proj`, without `W_query` and with one head, each around its own mean.
After 4800 steps there were six to eight seeds, now twelve, so they are normal, with the standard
deviation of those; its 95 % interval (chi squared) is printed. It scales the gain believed in.

One run. The baseline is one run, never repeated. An idea is kept if its one run is below the best
so far, which it then is. Counted: ideas kept; the gain believed in, which is the baseline minus the
last best (the true one is 0); nights that keep any null. Three kinds of null:
    other seed    each idea's run has its own seed
    same run      a fixed seed, and the idea changes no bit: every run has the baseline's loss
    one rounding  a fixed seed, and the idea changes the roundings: normal, with the standard
                  deviation of 12 trainings of one seed whose learning rate differs by parts in 10^7

`compare`. An idea is asked alone, with n pairs, 3, 5 or 8, and kept on "better". The word is that
of `mlx_attn.comparison.judging`, with no tuning and a margin of 0.015 nats, the records'. Its level
is
    5 %     for each idea
    spent   0.05 / (k (k + 1)) for idea k
    even    0.05 / 100 for each idea
The gain believed in is the sum of the mean differences of those kept. Calls have the same seeds, so
the control's runs are shared by the ideas of a night: a difference is x_k - x_0, where each x is a
pair's difference over the square root of 2. With a fresh control each the keeps are as many, and
the nights with any are printed beside them.

Real changes. Three of the 100, in a place drawn every night, are worth what the records say: the
cost of the worse form of `out_proj` or none, `W_query` or none, four heads or one; at 300 steps one
head is the better, at 4800 four are. What is kept stays, with the loss that it was seen with. What
is not kept is proposed again in the next night, the real ones among new nulls; "spent" counts on.
Counted: the share of first nights that keep each; the share that is right, with all three and no
null; the nights until all three are kept (median, at most 20), with their runs: one for each idea,
or 2 n.

Expected: one run each keeps 4.2 of 100 (the sum of 1/k from 2 to 101) and believes in 2.5 standard
deviations; the same with one rounding, whose deviation is about that of seeds. `compare` keeps up
to 2.5 of 100 at 5 % (half of the errors are "worse"), and so errs in most nights; spent or even, it
keeps .02, and with 8 pairs finds what is worth 3 standard deviations of a difference or more, but
not `out_proj` after 4800 steps, which is within the margin.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np
from scipy import stats

from mlx_attn.comparison.judging import Sample
from mlx_attn.ui.plots import COLOURS, panels, style
from studies.lengths import Lengths
from studies.trainings import STANDARD, differences, losses

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NIGHTS, IDEAS, SEED = 2000, 100, 2026
PAIRS = (3, 5, 8)
MARGIN = 0.015  # nats: that of the records
MOST_NIGHTS = 20
ERROR = 0.05
GREY = "#7f7f7f"
NAMES = {
    "one run": ("one run", 0, 0),
    "5 %": ("compare at 5 %, by pairs", 0, 6),
    "spent": ("5 % spent", -12, -3),
    "even": ("5 % / 100", 6, -3),
}
"""How the figure calls each rule, and where it writes the pairs, in points."""
FORMS = ("no-out-proj", "no-query", "one-head")
PICTURES = Path(__file__).parents[1] / "docs" / "pictures"

FINAL = 2.1745539
ROUNDED = tuple(FINAL + x * 1e-8 for x in (-14, 10, 24, 18, -29, -5, -29, 7, -7, 17, 16, -5))
"""Final losses of one seed whose learning rate is 0.0238 (1 + k 10^-7), k from 1 to 12, after 300
steps: `mlx-attn compare --seeds 1 --no-tune --reference none`, with the settings of the text in
studies/lengths.toml and an arm 'r1: standard, lr=0.0238000024' for each k."""

Random = np.random.Generator
Draw = Callable[[Random, tuple[int, ...]], np.ndarray]


@dataclass(frozen=True, slots=True)
class Length:
    """The losses of trainings of one length, from the records.

    Attributes:
        run: Draws losses of single runs around their mean.
        pair: Draws differences of a pair around their mean.
        spreads: Standard deviation and degrees of freedom of the two.
        gains: The worth of the better form of each real change, in nats.
    """

    steps: int
    run: Draw
    pair: Draw
    spreads: tuple[tuple[float, int], tuple[float, int]]
    gains: tuple[float, ...]


def normal(deviation: float) -> Draw:
    """Return draws of the normal distribution around 0."""
    return lambda random, shape: deviation * random.standard_normal(shape)


def bootstrap(centred: np.ndarray) -> Draw:
    """Return draws with replacement."""
    return lambda random, shape: random.choice(centred, shape)


def lengths() -> tuple[Length, Length]:
    """Read the runs of 300 and 4800 steps."""
    data = Lengths.read()
    by_name = losses(data.trainings)

    def at(steps: int, world: str, studies: Sequence[str], many: bool) -> Length:
        alone = [v for s in studies for v in by_name[s, world, STANDARD].values()]
        pairs = [
            [d for s in studies for d in differences(by_name, (s, world, form))] for form in FORMS
        ]
        groups = [[np.array(alone)], [np.array(each) for each in pairs]]
        centred = [np.concatenate([g - g.mean() for g in group]) for group in groups]
        degrees = [len(c) - len(group) for c, group in zip(centred, groups, strict=True)]
        spreads = [(sqrt(float(c @ c) / d), d) for c, d in zip(centred, degrees, strict=True)]
        draws = [
            bootstrap(c) if many else normal(s) for c, (s, _) in zip(centred, spreads, strict=True)
        ]
        costs = [data.costs[form, "shakespeare", steps].estimate.mean for form in FORMS]
        gains = tuple(abs(cost) for cost in costs)
        return Length(steps, draws[0], draws[1], (spreads[0], spreads[1]), gains)

    late = "horizon-4800", "lengths-late"
    return (
        at(300, "shakespeare-fresh", ["fresh-seeds"], many=True),
        at(4800, "shakespeare-4800", late, many=False),
    )


def levels(rule: str, first: int = 1) -> np.ndarray:
    """Return the error that a rule gives to each idea of a night; `first` counts from 1."""
    k = np.arange(first, first + IDEAS)
    return {
        "5 %": np.full(IDEAS, ERROR),
        "spent": ERROR / (k * (k + 1)),
        "even": np.full(IDEAS, ERROR / IDEAS),
    }[rule]


def better(pairs: np.ndarray, level: np.ndarray) -> np.ndarray:
    """Return which ideas `compare` calls better, each asked by itself: [nights, ideas].

    Args:
        pairs: Differences to the control, [nights, ideas, seeds].
        level: Of each idea.
    """
    mean, law = pairs.mean(-1), Sample(pairs.shape[-1], 0.0, pairs.var(-1, ddof=1), 0).law
    same = np.abs(mean) + law.isf(level) < MARGIN
    return (2 * law.sf(np.abs(mean)) <= level) & (mean < 0) & ~same


def pairs_of(random: Random, length: Length, n: int, fresh: bool = False) -> np.ndarray:
    """Return differences of nulls, [nights, ideas, n], to a control that they share or not."""
    if fresh:
        return length.pair(random, (NIGHTS, IDEAS, n))
    ideas = length.pair(random, (NIGHTS, IDEAS, n)) - length.pair(random, (NIGHTS, 1, n))
    return ideas / sqrt(2)


def believed(runs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return which ideas one run keeps and the gain believed in after each, [nights, ideas]."""
    best = np.minimum.accumulate(runs, axis=1)
    return runs[:, 1:] < best[:, :-1], runs[:, :1] - best[:, 1:]


def real_by_one_run(random: Random, length: Length) -> tuple[np.ndarray, np.ndarray]:
    """Return the night that keeps each real change, [nights, 3], and the nulls of the first."""
    rows = np.arange(NIGHTS)
    best, true = length.run(random, (NIGHTS,)), np.zeros(NIGHTS)
    found, nulls = np.full((NIGHTS, len(FORMS)), inf), np.zeros(NIGHTS)
    gains = np.array([*length.gains, 0.0])
    for night, which in nights(random, found):
        for k in range(IDEAS):
            gain = gains[which[:, k]]
            loss = true - gain + length.run(random, (NIGHTS,))
            kept = loss < best
            best, true = np.minimum(best, loss), true - gain * kept
            real = kept & (gain > 0)
            found[rows[real], which[real, k]] = night
            nulls += (kept & (gain == 0)) * (night == 1)
    return found, nulls


def nights(random: Random, found: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield each night with the places of its real changes, until all of them are kept."""
    for night in range(1, MOST_NIGHTS + 1):
        if np.isfinite(found).all():
            return
        yield night, places(random, found)


def places(random: Random, found: np.ndarray) -> np.ndarray:
    """Return the real change, or 3 for a null, that each idea of a night is: [nights, ideas]."""
    which = np.full((NIGHTS, IDEAS), len(FORMS))
    order = random.random((NIGHTS, IDEAS)).argsort(1)
    for form in range(len(FORMS)):
        missing = np.isinf(found[:, form])
        which[missing, order[missing, form]] = form
    return which


def real_by_compare(
    random: Random, length: Length, rule: str, n: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the same as `real_by_one_run`."""
    found, nulls = np.full((NIGHTS, len(FORMS)), inf), np.zeros(NIGHTS)
    gains = np.array([*length.gains, 0.0])
    for night, which in nights(random, found):
        pairs = pairs_of(random, length, n) - gains[which][..., None]
        kept = better(pairs, levels(rule, 1 + IDEAS * (night - 1)))
        for form in range(len(FORMS)):
            found[(kept & (which == form)).any(1), form] = night
        nulls += (kept & (which == len(FORMS))).sum(1) * (night == 1)
    return found, nulls


def rules() -> Iterator[tuple[str, int]]:
    """Yield each of compare's rules with its pairs."""
    return ((rule, n) for rule in ("5 %", "spent", "even") for n in PAIRS)


def print_nulls(length: Length) -> None:
    """Print how many nulls each rule keeps."""
    click.echo(f"\n{length.steps} steps: kept of 100 nulls, gain believed in, % of nights with any")
    kinds = {"other seed": length.run, "same run": normal(0.0)}
    if length.steps == 300:
        kinds["one rounding"] = normal(float(np.std(ROUNDED, ddof=1)))
    for name, draw in kinds.items():
        kept, gain = believed(draw(np.random.default_rng(SEED), (NIGHTS, 1 + IDEAS)))
        echo(f"one run, {name}", kept, gain[:, -1])
    for rule, n in rules():
        for fresh in (False, True):
            pairs = pairs_of(np.random.default_rng(SEED), length, n, fresh)
            kept = better(pairs, levels(rule))
            name = f"compare, {rule}, {n} pairs, {'fresh' if fresh else 'shared'} control"
            echo(name, kept, -(pairs.mean(-1) * kept).sum(1))


def echo(name: str, kept: np.ndarray, gain: np.ndarray) -> None:
    """Print a row of the table of nulls."""
    nights = 100 * kept.any(1).mean()
    click.echo(f"{name:42} {kept.sum(1).mean():7.3f} {gain.mean():8.4f} {nights:6.1f}")


def print_real(length: Length) -> list[tuple[str, int, float, float]]:
    """Print how much each rule finds; return rule, pairs, % of nights with a null, % found."""
    worth = ", ".join(f"{gain:.3f}" for gain in length.gains)
    click.echo(f"\n{length.steps} steps: real changes worth {worth} among nulls: % of first nights")
    click.echo(f"{'that keep each; that are right; nights until all are kept; runs':>90}")
    points = list[tuple[str, int, float, float]]()
    for rule, n in [("one run", 0), *rules()]:
        random = np.random.default_rng(SEED)
        asked = real_by_compare(random, length, rule, n) if n else real_by_one_run(random, length)
        found, nulls = asked
        first = 100 * (found == 1).mean(0)
        right = 100 * ((found == 1).all(1) & (nulls == 0)).mean()
        nights = float(np.median(found.max(1)))
        runs = nights * IDEAS * max(1, 2 * n)
        each = " ".join(f"{share:5.1f}" for share in first)
        until = f"{nights:g} {runs:g}" if nights < inf else f"> {MOST_NIGHTS}"
        click.echo(f"{rule + (f', {n} pairs' if n else ''):20} {each}  {right:5.1f}  {until}")
        points.append((rule, n, 100 * float((nulls > 0).mean()), float(first.mean())))
    return points


def figure(length: Length, points: Sequence[tuple[str, int, float, float]]) -> "Figure":
    """Draw the gain that a night of nulls believes in, and the nulls and changes that are kept."""
    made, (left, right) = panels(2, 2, (4.2, 3.4))
    random, ideas = np.random.default_rng(SEED), np.arange(1, IDEAS + 1)
    _, gain = believed(length.run(random, (NIGHTS, 1 + IDEAS)))
    low, high = np.quantile(gain, (0.05, 0.95), axis=0)
    left.fill_between(ideas, low, high, color=COLOURS[0], alpha=0.2, linewidth=0)
    left.plot(ideas, gain.mean(0), color=COLOURS[0])
    left.axhline(length.gains[0], color=GREY, linewidth=0.8, linestyle="--")
    left.text(IDEAS, length.gains[0], "worth of out_proj", fontsize=8, ha="right", va="bottom")
    for n in PAIRS:
        pairs = pairs_of(np.random.default_rng(SEED), length, n)
        of_kept = -pairs.mean(-1) * better(pairs, levels("5 %"))
        total = of_kept.cumsum(1).mean(0)
        left.plot(ideas, total, color=COLOURS[1])
        left.annotate(f"{n}", (IDEAS, total[-1]), (4, -3), textcoords="offset points", fontsize=8)
    left.set_xlabel("ideas tried that do nothing (band: 90 % of nights)")
    left.set_ylabel("gain believed in, nats")
    for colour, (rule, (says, *place)) in zip(COLOURS, NAMES.items(), strict=False):
        of_rule = [(n, x, y) for name, n, x, y in points if name == rule]
        right.plot([x for _, x, _ in of_rule], [y for *_, y in of_rule], "o-", color=colour)
        left.plot([], [], "o-", color=colour, label=says)
        for n, x, y in of_rule:
            note = f"{n}" if n else ""
            right.annotate(note, (x, y), place, textcoords="offset points", fontsize=8)
    right.set(xlim=(-8, 105), ylim=(0, 105))
    right.set_xlabel("% of nights that keep a null")
    right.set_ylabel("% of real changes kept in a night")
    made.legend(loc="outside upper center", ncols=4, fontsize=9)
    return made


@click.command()
def main() -> None:
    """Print all tables, and draw the figure of the longer trainings."""
    click.echo(f"one rounding: {np.std(ROUNDED, ddof=1):.1e} nats")
    short, late = lengths()
    for length in (short, late):
        print_spreads(length)
        print_nulls(length)
    print_real(short)
    points = print_real(late)
    for theme, ink in (("light", "#1f2328"), ("dark", "#e6edf3")):
        parts = ("text.color", "xtick.color", "ytick.color", "axes.edgecolor", "axes.labelcolor")
        with style(**dict.fromkeys(parts, ink)):
            drawn, path = figure(late, points), PICTURES / f"loops-{theme}.svg"
            drawn.savefig(path, transparent=True, metadata={"Date": None})


def print_spreads(length: Length) -> None:
    """Print the standard deviations with their 95 % intervals."""
    for name, (deviation, degrees) in zip(("run", "pair"), length.spreads, strict=True):
        low, high = deviation * np.sqrt(degrees / stats.chi2.ppf([0.975, 0.025], degrees))
        spread = f"{deviation:.4f} ({low:.4f} to {high:.4f}), {degrees} degrees"
        click.echo(f"{length.steps} steps, one {name}: {spread}")


if __name__ == "__main__":
    main()
