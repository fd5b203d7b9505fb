"""Each arm's learning rate, found on seeds of its own.

Factors of two apart are tried, and more beyond the best of them until it lies between others. An
arm that trains S by AdamW has a second knob: S's own rate, which starts at lr / n_heads because one
step moves its scores about n_heads times as far as a step of the factors does.
"""

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, variance
from typing import Any

from mlx_attn.compare.plan import TUNING_SEED, Arm, ComparisonConfig, Trial, make_trial
from mlx_attn.compare.result import TrialResult, Tuning
from mlx_attn.compare.runner import ComparisonEvent, Tuned
from mlx_attn.compare.trial import Outcome, Store

WIDENINGS = 4
"""How often a search may go on beyond its ends."""

Train = Callable[[Iterable[Trial]], Generator[ComparisonEvent, None, None]]
"""Does the trainings that the store lacks, yielding what happens."""


@dataclass(frozen=True, slots=True)
class TunedArm:
    """An arm, the settings found for it, and the factor of all its learning rates."""

    arm: Arm
    changes: Mapping[str, Any] = field(default_factory=dict)
    lr_scale: float = 1.0


@dataclass(slots=True)
class _LRSearch:
    """The search for one factor of one arm, which starts with what was found before.

    Attributes:
        knob: "lr" for all learning rates, "merged_lr" for that of S alone, times lr / n_heads.
        losses: Mean losses of the factors; infinite where a training diverged.
        widenings: How many factors may still be added beyond the ends.
    """

    start: TunedArm
    knob: str
    scales: tuple[float, ...]
    losses: dict[float, float] = field(default_factory=dict)
    widenings: int = WIDENINGS

    def choice(self, scale: float, n_heads: int) -> TunedArm:
        if self.knob == "lr":
            return TunedArm(self.start.arm, self.start.changes, scale)
        changes = {**self.start.changes, "merged_lr": scale / n_heads}
        return TunedArm(self.start.arm, changes, self.start.lr_scale)

    @property
    def best(self) -> float:
        return min(self.losses, key=lambda scale: self.losses[scale])

    @property
    def interior(self) -> bool:
        """Whether factors on both sides of the best were tried."""
        return min(self.losses) < self.best < max(self.losses)

    def widen(self) -> bool:
        """Try one more factor beyond the best, if it is the last one; says whether there is one."""
        if self.interior or not self.widenings:
            return False
        low, high = min(self.scales), max(self.scales)
        self.scales += (low / 2,) if self.best == low else (high * 2,)
        self.widenings -= 1
        return True

    def result(self, seeds: Sequence[int]) -> Tuning:
        losses = {s: loss if math.isfinite(loss) else None for s, loss in self.losses.items()}
        return Tuning(
            arm=self.start.arm.name,
            losses=dict(sorted(losses.items())),
            best=self.best,
            interior=self.interior,
            seeds=tuple(seeds),
            knob=self.knob,
        )


class Tuner:
    """Settles the learning rates of all arms."""

    def __init__(self, protocol: ComparisonConfig, store: Store, train: Train):
        self.protocol, self.store, self._train = protocol, store, train
        self.seeds = [TUNING_SEED + i for i in range(protocol.tuning_seeds)]

    def __call__(self) -> Generator[ComparisonEvent, None, tuple[list[TunedArm], list[Tuning]]]:
        """Search, all arms side by side; returns what was found for each arm, and how."""
        choices = [TunedArm(arm) for arm in self.protocol.arms]
        if not self.protocol.tunes:
            only = self.protocol.scales[0]
            return [TunedArm(choice.arm, {}, only) for choice in choices], []
        first = [_LRSearch(choice, "lr", self.protocol.scales) for choice in choices]
        tunings = yield from self._search(first)
        choices = [search.choice(search.best, 1) for search in first]
        second = [s for choice in choices if (s := self._second(choice))]
        tunings += yield from self._search(second)
        found = {s.start.arm.name: s.choice(s.best, self._heads(s.start)) for s in second}
        return [found.get(choice.arm.name, choice) for choice in choices], tunings

    def trainings(self, tuning: Tuning) -> list[TrialResult]:
        """The trainings of an arm's first search that did not diverge."""
        arm = next(arm for arm in self.protocol.arms if arm.name == tuning.arm)
        search = _LRSearch(TunedArm(arm), "lr", tuple(tuning.losses))
        cells = [cell for scale in search.scales for cell in self._cells(search, scale)]
        return [found for cell in cells if isinstance(found := self.store[cell], TrialResult)]

    def spread(self, choices: Sequence[TunedArm]) -> float | None:
        """Standard deviation of paired differences to the control, over the tuning seeds.

        All arms together; None where there is one seed, or no pair that did not diverge.
        """
        control, *others = (
            [_loss(self.store[trial_for(self.protocol, choice, seed)]) for seed in self.seeds]
            for choice in choices
        )
        differences = [[a - b for a, b in zip(arm, control, strict=True)] for arm in others]
        finite = [pairs for pairs in differences if all(map(math.isfinite, pairs))]
        if len(self.seeds) < 2 or not finite:
            return None
        return math.sqrt(fmean(variance(pairs) for pairs in finite))

    def _search(self, searches: list[_LRSearch]) -> Generator[ComparisonEvent, None, list[Tuning]]:
        """Train and widen until every best factor lies between others, or enough is enough."""
        going = searches
        while going:
            yield from self._train(
                cell for s in going for scale in s.scales for cell in self._cells(s, scale)
            )
            for search in going:
                search.losses = {
                    scale: fmean(_loss(self.store[cell]) for cell in self._cells(search, scale))
                    for scale in search.scales
                }
            going = [search for search in going if search.widen()]
        tunings = [search.result(self.seeds) for search in searches]
        for tuning in tunings:
            yield Tuned(tuning)
        return tunings

    def _second(self, choice: TunedArm) -> _LRSearch | None:
        """The search for S's own rate, for an arm that has one."""
        settings = self.protocol.settings(choice.arm)
        heads = self._heads(choice)
        merged = settings.model.get("score") == "merged"
        if not merged or settings.training.optimizer != "adamw" or heads == 1:
            return None
        return _LRSearch(choice, "merged_lr", (0.5, 1.0, math.sqrt(heads), float(heads)))

    def _cells(self, search: _LRSearch, scale: float) -> list[Trial]:
        choice = search.choice(scale, self._heads(search.start))
        return [trial_for(self.protocol, choice, seed) for seed in self.seeds]

    def _heads(self, choice: TunedArm) -> int:
        return self.protocol.settings(choice.arm).model_config(2).n_heads


def trial_for(
    protocol: ComparisonConfig,
    choice: TunedArm,
    seed: int,
    changes: Mapping[str, Any] | None = None,
) -> Trial:
    """The training of an arm with its rates settled, a seed, and more changes."""
    settings = protocol.settings(choice.arm, {**choice.changes, **(changes or {})})
    return make_trial(choice.arm.name, settings, seed, choice.lr_scale, protocol.text)


def _loss(outcome: Outcome) -> float:
    return outcome.val_loss if isinstance(outcome, TrialResult) else math.inf
