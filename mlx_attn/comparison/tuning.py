"""The search for each arm's learning rate, on seeds that no verdict uses.

One factor multiplies all learning rates of an arm, and no arm has a further one: factors of two
apart are tried, and more beyond the best of them until it lies between others.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite, sqrt
from statistics import fmean, variance
from typing import Any

from mlx_attn.comparison.plan import TUNING_SEED, Arm, ComparisonConfig, Trial, make_trial
from mlx_attn.comparison.result import TrialResult, Tuning
from mlx_attn.comparison.runner import ComparisonEvent
from mlx_attn.comparison.trial import Store

EXTENSIONS = 4
"""Factors that a search may add beyond its ends."""

Train = Callable[[Iterable[Trial]], Generator[ComparisonEvent, None, None]]
"""Trains what the store lacks, yielding events."""


@dataclass(frozen=True, slots=True)
class TunedArm:
    """An arm and the factor found for its learning rates."""

    arm: Arm
    lr_scale: float = 1.0


@dataclass(slots=True)
class _LRSearch:
    """The search for the factor of one arm.

    Attributes:
        runs: Losses of the factors, seed by seed; infinite where a training diverged.
        extensions: Factors that may still be added beyond the ends.
    """

    arm: Arm
    scales: tuple[float, ...]
    runs: dict[float, tuple[float, ...]] = field(default_factory=dict)
    extensions: int = EXTENSIONS

    @property
    def losses(self) -> dict[float, float]:
        """Mean losses of the factors."""
        return {scale: fmean(runs) for scale, runs in sorted(self.runs.items())}

    @property
    def best(self) -> float:
        return min(self.losses, key=lambda scale: self.losses[scale])

    @property
    def interior(self) -> bool:
        """Whether factors on both sides of the best were tried."""
        return min(self.losses) < self.best < max(self.losses)

    def extend(self) -> bool:
        """Add a factor beyond the best, if that is the last one; says whether one was added."""
        if self.interior or not self.extensions:
            return False
        self.extensions -= 1
        low, high = min(self.scales), max(self.scales)
        self.scales += (low / 2,) if self.best == low else (high * 2,)
        return True

    def result(self, seeds: Sequence[int]) -> Tuning:
        finite = {s: isfinite(loss) for s, loss in self.losses.items()}
        return Tuning(
            arm=self.arm.name,
            losses={s: self.losses[s] if finite[s] else None for s in finite},
            runs={s: self.runs[s] for s in finite if finite[s]},
            best=self.best,
            interior=self.interior,
            seeds=tuple(seeds),
        )


class Tuner:
    """Settles the learning rates of all arms."""

    def __init__(self, protocol: ComparisonConfig, store: Store, train: Train):
        self.protocol, self.store, self._train = protocol, store, train
        self.seeds = [TUNING_SEED + i for i in range(protocol.tuning_seeds)]

    def __call__(self) -> Generator[ComparisonEvent, None, tuple[list[TunedArm], list[Tuning]]]:
        """Search, all arms side by side; returns what was found for each arm, and how."""
        scales = self.protocol.scales
        if not self.protocol.tunes:
            return [TunedArm(arm, scales[0]) for arm in self.protocol.all_arms], []
        searches = [_LRSearch(arm, scales) for arm in self.protocol.all_arms]
        tunings = yield from self._search(searches)
        return [TunedArm(search.arm, search.best) for search in searches], tunings

    def trials(self, tunings: Iterable[Tuning]) -> list[Trial]:
        """The trials of every arm's search."""
        losses = {tuning.arm: tuning.losses for tuning in tunings}
        found = [
            (arm, scale) for arm in self.protocol.all_arms for scale in losses.get(arm.name, ())
        ]
        return [t for arm, scale in found for t in self._trials(TunedArm(arm, scale))]

    def spread(self, arms: Sequence[TunedArm]) -> float | None:
        """Standard deviation of paired differences to the control, over the tuning seeds.

        All arms together; None where there is one seed, or no pair that did not diverge.
        """
        control, *others = ([*map(self._loss, self._trials(arm))] for arm in arms)
        differences = [[a - b for a, b in zip(arm, control, strict=True)] for arm in others]
        finite = [pairs for pairs in differences if all(map(isfinite, pairs))]
        if len(self.seeds) < 2 or not finite:
            return None
        return sqrt(fmean(variance(pairs) for pairs in finite))

    def _search(self, searches: list[_LRSearch]) -> Generator[ComparisonEvent, None, list[Tuning]]:
        """Train and extend until every best factor lies between others, or enough were tried."""
        unsettled = searches
        while unsettled:
            yield from self._train(
                trial
                for s in unsettled
                for scale in s.scales
                for trial in self._trials(TunedArm(s.arm, scale))
            )
            for search in unsettled:
                search.runs = {
                    scale: tuple(map(self._loss, self._trials(TunedArm(search.arm, scale))))
                    for scale in search.scales
                }
            unsettled = [search for search in unsettled if search.extend()]
        tunings = [search.result(self.seeds) for search in searches]
        yield from tunings
        return tunings

    def _trials(self, tuned: TunedArm) -> list[Trial]:
        return [trial_for(self.protocol, tuned, seed) for seed in self.seeds]

    def _loss(self, trial: Trial) -> float:
        outcome = self.store[trial]
        return outcome.val_loss if isinstance(outcome, TrialResult) else inf


def trial_for(
    protocol: ComparisonConfig, tuned: TunedArm, seed: int, changes: Mapping[str, Any] | None = None
) -> Trial:
    """The training of an arm with its rates settled, a seed, and changes of its settings."""
    settings = protocol.settings(tuned.arm, changes or {})
    return make_trial(tuned.arm.name, settings, seed, tuned.lr_scale, protocol.text)
