"""The search for each arm's learning rate, on seeds that no verdict uses.

One factor multiplies all learning rates of an arm: factors of two apart are tried, and more beyond
the best of them until it lies between others, as far as there are trainings for it. On a task the
best factor is the one with which most seeds solve it, and of these the one with the lowest mean
loss; on a text only the loss counts.
"""

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from statistics import fmean

from mlx_attn.comparison.config import TUNING_SEED, Arm, ComparisonConfig
from mlx_attn.comparison.plan import Trial, trial_of
from mlx_attn.comparison.result import Tuning
from mlx_attn.comparison.stages import ComparisonEvent, Events
from mlx_attn.comparison.trial import Store, has_failed, loss_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The search for the learning rates of an arm, as far as its trials are finished."""

    # By factor, a loss for each tuning seed, infinite if the training diverged; empty until all
    # trials are finished.
    losses: Mapping[float, tuple[float, ...]]
    trials: tuple[Trial, ...] = ()  # all that the search has asked for so far
    # The factor with the lowest mean loss; None until its neighbours are finished.
    best: float | None = None

    @property
    def interior(self) -> bool:
        """True if factors on both sides of the best were tried."""
        return self.best is not None and min(self.losses) < self.best < max(self.losses)

    @property
    def means(self) -> dict[float, float | None]:
        """The mean losses by factor; None with a factor with which a training diverged."""
        means = {factor: fmean(runs) for factor, runs in sorted(self.losses.items())}
        return {factor: mean if isfinite(mean) else None for factor, mean in means.items()}


def search_rates(config: ComparisonConfig, store: Store, arm: Arm) -> Search:
    """Return the search for the factor of an arm's learning rates, as far as it has gone.

    If the best factor is the first or the last one, one beyond it is added, `config.extensions` in
    all.
    """
    if not config.tunes:
        return Search(losses={}, best=config.factors[0])

    def trials_of(factor: float) -> list[Trial]:
        choice = replace(arm, lr_scale=factor)
        return [trial_of(config, choice, TUNING_SEED + i) for i in range(config.seeds_for_tuning)]

    trials = {factor: trials_of(factor) for factor in config.factors}
    while True:
        asked = tuple(trial for each in trials.values() for trial in each)
        if store.missing(asked):
            return Search(losses={}, trials=asked)
        outcomes = {factor: [store[trial] for trial in each] for factor, each in trials.items()}
        losses = {factor: tuple(map(loss_of, each)) for factor, each in outcomes.items()}
        # Sorted: among equal means the smallest factor wins, in whatever order they finished.
        best = min(
            sorted(losses),
            key=lambda factor: (sum(map(has_failed, outcomes[factor])), fmean(losses[factor])),
        )
        found = Search(losses=losses, trials=asked, best=best)
        if found.interior or len(trials) == len(config.factors) + config.extensions:
            return found
        beyond = best / 2 if best == min(losses) else best * 2
        trials[beyond] = trials_of(beyond)


def tuning_pairs(arm: Search, control: Search) -> tuple[tuple[float, ...], ...]:
    """Return paired differences of two arms over the tuning seeds, which show how far they spread.

    In three groups: with the best factor of each, with the factors below and with those above.
    Pairs of which one training diverged are left out.
    """
    groups: list[tuple[float, ...]] = []
    for place in (-1, 0, 1):
        pairs = zip(_beside_the_best(arm, place), _beside_the_best(control, place), strict=False)
        groups.append(tuple(a - c for a, c in pairs if isfinite(a) and isfinite(c)))
    return tuple(group for group in groups if group)


def _beside_the_best(search: Search, place: int) -> tuple[float, ...]:
    """Return the losses with the factor `place` factors above the best; empty beyond the ends."""
    factors = sorted(search.losses)
    if search.best not in factors:
        return ()
    index = factors.index(search.best) + place
    return search.losses[factors[index]] if 0 <= index < len(factors) else ()


def tune(
    config: ComparisonConfig, store: Store, train: Callable[[Iterable[Trial]], Events]
) -> Generator[ComparisonEvent, None, dict[str, Search]]:
    """Search for the rates of all arms side by side, so that no worker waits for one of them.

    The reference is tuned too: with bad rates it would make the part look worth more.

    Returns:
        The settled searches by arm.
    """
    while True:
        searches = {arm.name: search_rates(config, store, arm) for arm in config.all_arms}
        unsettled = [search for search in searches.values() if search.best is None]
        if not unsettled:
            break
        yield from train(trial for search in unsettled for trial in search.trials)
    yield from tunings_of(config, searches)
    return searches


def tunings_of(config: ComparisonConfig, searches: Mapping[str, Search]) -> tuple[Tuning, ...]:
    """Return the records of settled searches by arm; none without tuning."""
    seeds = tuple(range(TUNING_SEED, TUNING_SEED + config.seeds_for_tuning))
    return tuple(
        Tuning(
            arm=arm, losses=search.means, best=search.best, interior=search.interior, seeds=seeds
        )
        for arm, search in searches.items()
        if config.tunes and search.best is not None
    )
