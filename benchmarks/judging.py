"""Simulate how often `compare` errs and how much it finds, and how large the error of tuning is.

    python benchmarks/judging.py [DRAWS]

For one and three arms, with 3, 5, 8 and 10 seeds, and the tuning seeds that come with them or none:
in how many percent of comparisons any arm, all equal to the control, is called better or worse, the
error of tuning apart, if the runs of both forms have a shape or those of one form only; and in how
many an arm is found whose loss is 1 or 1.5 standard deviations of a difference higher, though
tuning errs by as much as the test allows for. Then the scatter of repeated searches for the rates,
and how often equal forms are called better or worse by who asks again with the seeds needed, up to
three times, of which the first are those of before.
"""

from collections.abc import Callable, Mapping
from itertools import product
from typing import NamedTuple

import click
import numpy as np

from mlx_attn.comparison.judging import (
    LEAST_LENT,
    OTHER_DEGREES,
    TUNING_DEGREES,
    TUNING_SHARE,
    Contrast,
    Sample,
    holm,
    judge,
)

Random = np.random.Generator
Draw = Callable[[Random, tuple[int, ...]], np.ndarray]
LEVEL, GROUPS = 0.05, 3  # tuning pairs: below the best rates, with them, above them
TUNING_SEEDS = {3: 1, 5: 1, 8: 2, 10: 2}  # by seeds, those of `compare` without --tuning-seeds

SHAPES: Mapping[str, Draw] = {
    "normal": lambda random, shape: random.standard_normal(shape),
    "t3": lambda random, shape: random.standard_t(3, shape) / np.sqrt(3),
    "exponential": lambda random, shape: random.exponential(size=shape) - 1,
    "lognormal": lambda random, shape: (
        (random.lognormal(size=shape) - np.exp(0.5)) / np.sqrt(np.e * (np.e - 1))
    ),
    "1 in 10 fails": lambda random, shape: (
        (10.0 * (random.random(shape) < 0.1) + random.standard_normal(shape) - 1) / np.sqrt(10)
    ),
}
"""Distributions of mean 0 and standard deviation 1."""

MOST_AGAIN = 100  # seeds that anybody trains

SHARPNESS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)  # of the best learning rate, see `excesses`


class Design(NamedTuple):
    """A simulated comparison; `both`: runs of both forms have the shape, not of one only."""

    draws: int
    arms: int
    tuning_seeds: int
    seeds: int
    both: bool


def differences(random: Random, draw: Draw, shape: tuple[int, ...], both: bool) -> np.ndarray:
    """Return differences of equal forms, [draws, arms, ..., seeds], of standard deviation 1."""
    arms = draw(random, shape)
    if not both:
        return arms
    # One control for all arms.
    return (arms - draw(random, (shape[0], 1, *shape[2:]))) / np.sqrt(2)


def p_values(pairs: np.ndarray, tuning: np.ndarray | None, tuning_seeds: int) -> np.ndarray:
    """Return corrected p-values, [draws, arms], pooled as in `Sample.of`.

    With 0 tuning seeds nothing is allowed for the error of tuning.
    """
    arms, seeds = pairs.shape[1:]
    own, squares = seeds - 1, pairs.var(-1, ddof=1)
    tuned, of_tuning = 0, np.zeros_like(squares)
    if tuning is not None:
        k = tuning.shape[-1]  # one tuning seed shows no spread
        tuned, of_tuning = GROUPS * (k - 1), tuning.var(-1).mean(-1) * k / max(1, k - 1)
    variance = (own * squares + tuned * of_tuning) / (own + tuned)
    # [draws, arms, arms]: whether the second arm lends its variance to the first.
    lends = (squares[:, None] > LEAST_LENT * squares[..., None]) & ~np.eye(arms, dtype=bool)
    others = (lends * variance[:, None]).sum(-1) / np.maximum(1, lends.sum(-1))
    lent, of_others = min(tuned, TUNING_DEGREES), OTHER_DEGREES * lends.any(-1)
    total = own * squares + lent * of_tuning + of_others * others
    variance = total / (own + lent + of_others)
    sample = Sample(seeds, 0.0, variance, lent + of_others, tuning_seeds)
    return holm(2 * sample.law.sf(np.abs(pairs.mean(-1))))


def excesses(random: Random, draws: int, sharpness: float, seeds: int) -> np.ndarray:
    """Return how much an arm loses over the best of three factors, search by search.

    The loss rises by `sharpness` times the squared distance from the best rate, in octaves; the
    difference of two runs has a deviation of 1.
    """
    factors, best = np.array([-1.0, 0.0, 1.0]), random.uniform(-0.5, 0.5, (draws, 1))
    losses = sharpness * (factors - best) ** 2
    noise = random.standard_normal((draws, 3, seeds)).mean(-1) / np.sqrt(2)
    chosen = (losses + noise).argmin(1)
    return losses[np.arange(draws), chosen] - losses.min(1)


def found(random: Random, draw: Draw, design: Design, effect: float = 0.0) -> np.ndarray:
    """Return which arms are called better or worse, [draws, arms]; the first one has an effect."""
    *shape, k, seeds, both = design
    pairs = differences(random, draw, (*shape, seeds), both)
    if not k:
        pairs[:, 0] += effect
        return p_values(pairs, None, 0) <= LEVEL
    # Pairs of one tuning seed with other rates correlate: by 0.3 to 0.7 in ten seeds of nano.
    alike, own = (differences(random, draw, (*shape, n, k), both) for n in (1, GROUPS))
    if effect:
        pairs += np.sqrt(TUNING_SHARE / k) * random.standard_normal((*shape, 1))
        pairs[:, 0] += effect
    return p_values(pairs, (alike + own) / np.sqrt(2), k if effect else 0) <= LEVEL


def asked_again(random: Random, seeds: int, confidence: float) -> np.ndarray:
    """Return whether one arm, equal to the control, is called better or worse: at first, at last.

    Differences within half their standard deviation count as none.
    """
    differences, wrong = random.standard_normal(MOST_AGAIN).tolist(), list[bool]()
    for _ in range(4):
        contrast = {"arm": Contrast(differences=tuple(differences[:seeds]))}
        verdict = judge(contrast, 0.5, confidence)["arm"]
        wrong.append(verdict.word in ("better", "worse"))
        if verdict.seeds_needed is None or verdict.seeds_needed > MOST_AGAIN:
            break
        seeds = verdict.seeds_needed
    return np.array([wrong[0], wrong[-1]])


@click.command()
@click.argument("draws", type=click.IntRange(1), default=10_000)
def main(draws: int) -> None:
    """Print how often `compare` errs and finds, from DRAWS comparisons for each number."""
    random = np.random.default_rng(2026)
    click.echo(f"arms, tuning seeds, seeds: {', '.join(SHAPES)}; found: 1 sd, 1.5 sd")
    for arms, tuned, n, both in product((3, 1), (1, 0), TUNING_SEEDS, (True, False)):
        design = Design(draws, arms, k := tuned * TUNING_SEEDS[n], n, both)
        false = [found(random, draw, design).any(1).mean() for draw in SHAPES.values()]
        hits = [found(random, SHAPES["normal"], design, sd)[:, 0].mean() for sd in (1.0, 1.5)]
        rates = "  ".join(f"{100 * rate:5.1f}" for rate in (*false, *hits))
        click.echo(f"{arms}, {k}, {n:2}  {'both forms' if both else 'one form':10}  {rates}")
    click.echo(f"\nsquared error of tuning over s^2 / k; claimed: {TUNING_SHARE}")
    for k in (1, 2, 3):
        scatter = [2 * k * excesses(random, draws, each, k).var() for each in SHARPNESS]
        click.echo(f"{k} tuning seeds: {', '.join(f'{each:.2f}' for each in scatter)}")
    click.echo("\nasked again, at first and at last:")
    for confidence, seeds in product((0.95, 0.98), (5, 8)):
        wrong = [asked_again(random, seeds, confidence) for _ in range(max(1, draws // 5))]
        first, last = 100 * np.mean(wrong, axis=0)
        click.echo(f"confidence {confidence}, {seeds} seeds: {first:.1f}, {last:.1f}")


if __name__ == "__main__":
    main()
