"""The search for each arm's learning rate, on seeds that no verdict uses.

One factor multiplies all learning rates of an arm: factors of two apart are tried, and more beyond
the best of them until it lies between others. On a task the best factor is the one with which most
seeds solve it, and of these the one with the lowest mean loss; on a text only the loss counts. Then
a second factor may be searched for, of the rate
of queries and keys relative to the other matrices, for every arm alike.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import hypot, isfinite, sqrt
from statistics import fmean, variance
from typing import NamedTuple

import numpy as np

from mlx_attn.comparison.plan import TUNING_SEED, Arm, ComparisonConfig, Trial
from mlx_attn.comparison.result import Tuning
from mlx_attn.comparison.stages import ComparisonEvent
from mlx_attn.comparison.trial import Store, has_failed

EXTENSIONS = 4  # factors that a search may add beyond its ends

Train = Callable[[Iterable[Trial]], Generator[ComparisonEvent, None, None]]
"""Trains what the store lacks, yielding events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The search for the learning rates of an arm, as far as its trials are finished."""

    # By factor, a loss for each tuning seed, infinite if the training diverged; only factors that
    # are finished.
    losses: Mapping[float, tuple[float, ...]]
    trials: tuple[Trial, ...] = ()  # all that the search has asked for so far
    # Those of them that the next decision needs; empty once it is settled.
    wanted: tuple[Trial, ...] = ()
    # The factor with the lowest mean loss; None until its neighbours are finished.
    best: float | None = None
    interior: bool = False  # true if factors on both sides of the best were tried
    # The search for the factor of queries and keys, with the best factor of all rates; None if
    # there is none.
    query_key: "Search | None" = None

    @property
    def settled(self) -> bool:
        """True if the arm can be trained for its verdict."""
        return not self.wanted and self.best is not None

    @property
    def query_key_lr(self) -> float:
        """The chosen factor of the rate of queries and keys; 1 if it is not searched for."""
        return (self.query_key and self.query_key.best) or 1.0

    @property
    def error(self) -> float:
        """Standard error that both choices add to the arm's loss; see `tuning_error`."""
        own = tuning_error(self.finite)
        # Two choices, one after the other: their squares add up.
        return hypot(own, tuning_error(self.query_key.finite)) if self.query_key else own

    @property
    def chosen(self) -> tuple[float, ...]:
        """The losses with the best rates, one for each tuning seed; empty without a search."""
        last = self.query_key or self
        return last.losses.get(last.best or 0.0, ())

    @property
    def means(self) -> dict[float, float | None]:
        """The mean losses by factor; None with a factor with which a training diverged."""
        means = {factor: fmean(runs) for factor, runs in sorted(self.losses.items())}
        return {factor: mean if isfinite(mean) else None for factor, mean in means.items()}

    @property
    def finite(self) -> dict[float, tuple[float, ...]]:
        """The losses of factors with which no training diverged, by factor."""
        return {f: runs for f, runs in sorted(self.losses.items()) if all(map(isfinite, runs))}


def search_rates(
    trials_of: Callable[[float, float], Sequence[Trial]],
    loss: Callable[[Trial], float | None],
    factors: Sequence[float],
    extensions: int = EXTENSIONS,
    refine: Sequence[float] = (),
    query_key_factors: Sequence[float] = (),
    failed: Callable[[Trial], bool] = lambda trial: False,
) -> Search:
    """Search for the factors of an arm's learning rates among the trials that are finished.

    Args:
        trials_of: The tuning trials with a factor of all rates, and one of queries and keys.
        loss: A trial's final loss; infinite if it diverged, None if it is not finished.
        factors: Those to begin with.
        extensions: How many may be added, one at a time, beyond the best if that is the last one.
        refine: Multiples of the best factor that are tried at the end.
        query_key_factors: Those of queries and keys to begin with, tried with the best factor of
            all rates; one more may be added beyond the best of them.
        failed: Whether a finished trial did not solve its task; fewer of them beat a lower loss.
    """
    search_one = partial(_search, loss, failed)
    search = search_one(lambda factor: trials_of(factor, 1.0), factors, extensions, refine)
    if not query_key_factors or not search.settled or (best := search.best) is None:
        return search
    second = search_one(lambda ratio: trials_of(best, ratio), query_key_factors, extensions=1)
    trials = (*search.trials, *second.trials)
    return replace(search, trials=trials, wanted=second.wanted, query_key=second)


def _search(
    loss: Callable[[Trial], float | None],
    failed: Callable[[Trial], bool],
    trials_of: Callable[[float], Sequence[Trial]],
    factors: Sequence[float],
    extensions: int,
    refine: Sequence[float] = (),
) -> Search:
    """Search for one factor."""
    tried: dict[float, tuple[float, ...]] = {}
    failures: dict[float, int] = {}
    trials: list[Trial] = []

    def try_out(factors: Sequence[float]) -> list[Trial]:
        """Read finished trials into `tried`; return the missing ones."""
        missing: list[Trial] = []
        for factor in factors:
            these = trials_of(factor)
            trials.extend(these)
            losses = [loss(trial) for trial in these]
            lacking = [trial for trial, final in zip(these, losses, strict=True) if final is None]
            missing += lacking
            # A factor counts only once all of its seeds are finished.
            if not lacking:
                tried[factor] = tuple(final for final in losses if final is not None)
                failures[factor] = sum(map(failed, these))
        return missing

    wanted, best, interior = try_out(factors), None, False
    for _ in range(extensions):
        # Either trials are missing, or the best factor lies between two others: nothing to extend.
        if wanted or min(tried) < (last := _best(tried, failures)) < max(tried):
            break
        # One factor further out, on the side of the best.
        wanted = try_out([last / 2 if last == min(tried) else last * 2])
    if not wanted:
        best = _best(tried, failures)
        interior = min(tried) < best < max(tried)
        # Refinements are tried only around a settled best.
        wanted = try_out([round(best * ratio, 4) for ratio in refine])
        best = best if wanted else _best(tried, failures)
    return Search(
        losses=tried, trials=tuple(trials), wanted=tuple(wanted), best=best, interior=interior
    )


def _best(tried: Mapping[float, Sequence[float]], failures: Mapping[float, int]) -> float:
    # Sorted: among equal means the smallest factor wins, in whatever order they finished.
    return min(sorted(tried), key=lambda factor: (failures.get(factor, 0), fmean(tried[factor])))


def tuning_error(losses: Mapping[float, Sequence[float]]) -> float:
    """Return the standard error that choosing a learning rate adds to a loss, in its unit.

    It has two independent parts. The choice: tuning seeds are resampled with replacement, and the
    excess loss of the factor that then wins is squared and averaged over all draws, times
    k / (k - 1) for k seeds. The grid: the depth of the vertex below the best factor, of a parabola
    through the best and its neighbours. The losses are by factor, one for each tuning seed.
    """
    factors = sorted(f for f, finals in losses.items() if all(map(isfinite, finals)))
    if len(factors) < 3 or (k := min(len(losses[f]) for f in factors)) < 2:
        return 0.0
    # [factors, k]
    runs = np.array([losses[f][:k] for f in factors])
    means = runs.mean(axis=1)
    # [k, k^k]: all draws of k seeds with replacement; the same draw for all factors keeps pairs.
    if k <= _MOST_DRAWN:
        drawn = np.indices((k,) * k).reshape(k, -1)
    else:
        drawn = np.random.default_rng(0).integers(k, size=(k, 500))
    # [factors, k, draws] -> means [factors, draws] -> the winner of each draw, [draws]
    chosen = runs[:, drawn].mean(axis=1).argmin(axis=0)
    of_choice = k / (k - 1) * float(np.mean((means[chosen] - means.min()) ** 2))
    # Independent errors: their squares add up.
    return sqrt(of_choice + _grid_gain(np.log2(factors), means) ** 2)


_MOST_DRAWN = 4  # seeds of which all draws are made; of more, some


def _grid_gain(octaves: np.ndarray, means: np.ndarray) -> float:
    """Return the gain of a factor between the tried ones, by a parabola through three of them."""
    best = int(means.argmin())
    if not 0 < best < len(means) - 1:
        return 0.0
    # The origin is the best factor, so the parabola is y = curvature x^2 + slope x.
    x, y = octaves[best - 1 : best + 2] - octaves[best], means[best - 1 : best + 2] - means[best]
    curvature, slope, _ = np.polyfit(x, y, 2)
    # Depth of its vertex below the origin.
    return float(slope**2 / (4 * curvature)) if curvature > 0 else 0.0


class Replicates(NamedTuple):
    """Pairs of tuning runs, in groups: their differences, and the control's losses in them."""

    differences: tuple[tuple[float, ...], ...] = ()
    control: tuple[tuple[float, ...], ...] = ()


def replicates_of(
    arm: Mapping[float, Sequence[float]], control: Mapping[float, Sequence[float]]
) -> Replicates:
    """Return pairs of two arms over the tuning seeds, which show how far seeds spread.

    With the best factor of each, with the factors below and with those above: each run is in one
    group. Each arm's losses are by factor, seed by seed.
    """
    if not arm or not control:
        return Replicates()
    both = zip(_beside_the_best(arm), _beside_the_best(control), strict=True)
    groups = [[*zip(*pair, strict=False)] for pair in both if all(pair)]
    return Replicates(
        differences=tuple(tuple(a - c for a, c in group) for group in groups),
        control=tuple(tuple(c for _, c in group) for group in groups),
    )


def _beside_the_best(losses: Mapping[float, Sequence[float]]) -> list[Sequence[float]]:
    """Return the losses with the factor below the best, with it and with that above; or empty."""
    factors, best = sorted(losses), _best(losses, {})
    places = [factors.index(best) + step for step in (-1, 0, 1)]
    return [losses[factors[place]] if 0 <= place < len(factors) else () for place in places]


def tune(
    protocol: ComparisonConfig, store: Store, train: Train
) -> Generator[ComparisonEvent, None, dict[str, Search]]:
    """Search for the rates of all arms side by side, so that no worker waits for one of them.

    The reference is tuned too: with bad rates it would make the part look worth more.

    Returns:
        The settled searches by arm.
    """
    while True:
        searches = {arm.name: _search_arm(protocol, store, arm) for arm in protocol.all_arms}
        unsettled = [search for search in searches.values() if search.wanted]
        if not unsettled:
            break
        yield from train(trial for search in unsettled for trial in search.trials)
    yield from tunings_of(protocol, searches)
    return searches


def _search_arm(protocol: ComparisonConfig, store: Store, arm: Arm) -> Search:
    """Return the search of an arm, as far as the store has its trials."""
    if not protocol.tunes:
        return Search(losses={}, best=protocol.scales[0])

    def trials_of(lr_scale: float, query_key_lr: float) -> list[Trial]:
        choice = _with_rates(protocol, arm, lr_scale, query_key_lr)
        return [protocol.trial(choice, TUNING_SEED + i) for i in range(protocol.tuning_seeds)]

    scales, ratios = protocol.scales, protocol.query_key_scales
    settings = protocol.settings(arm)
    layers = settings.model_config(settings.model.get("vocab_size", 256)).kinds()
    # An arm without weights for its scores, such as the reference, has no such rate.
    if not any(choice.weights for layer in layers for choice in layer.choices("score")):
        ratios = ()
    return search_rates(
        trials_of,
        store.loss,
        scales,
        query_key_factors=ratios,
        failed=lambda trial: has_failed(store[trial]),
    )


def tuned(protocol: ComparisonConfig, arm: Arm, search: Search) -> Arm:
    """Return an arm with the rates that a settled search has chosen."""
    assert search.best is not None
    return _with_rates(protocol, arm, search.best, search.query_key_lr)


def _with_rates(protocol: ComparisonConfig, arm: Arm, lr_scale: float, query_key: float) -> Arm:
    settings = dict(arm.settings)
    if query_key != 1:  # so that an arm without this search stays the same training
        settings["query_key_lr"] = protocol.settings(arm).training.query_key_lr * query_key
    return replace(arm, settings=settings, lr_scale=lr_scale)


def tunings_of(protocol: ComparisonConfig, searches: Mapping[str, Search]) -> tuple[Tuning, ...]:
    """Return the records of settled searches by arm; none without tuning."""
    seeds = tuple(range(TUNING_SEED, TUNING_SEED + protocol.tuning_seeds))
    return tuple(
        Tuning(
            arm=arm,
            losses=search.means,
            runs=search.finite,
            best=search.best,
            interior=search.interior,
            seeds=seeds,
            query_key_lr=search.query_key_lr,
            query_key_losses=search.query_key.means if search.query_key else {},
        )
        for arm, search in searches.items()
        if protocol.tunes and search.best is not None
    )


def spread_of(searches: Sequence[Search]) -> float | None:
    """Return the standard deviation of paired differences to the first arm over tuning seeds.

    All arms together; None without tuning or with a single seed, or if every arm has a pair that
    diverged.
    """
    control, *others = (search.chosen for search in searches)
    differences = [[a - c for a, c in zip(arm, control, strict=True)] for arm in others]
    finite = [pairs for pairs in differences if len(pairs) > 1 and all(map(isfinite, pairs))]
    # Variances are averaged, not deviations: the arms have equally many seeds.
    return sqrt(fmean(map(variance, finite))) if finite else None
