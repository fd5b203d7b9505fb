"""Which trainings the study still asks for: a pure function of the records that there are.

An arm's factor of the learning rates is searched for on seeds that no verdict uses, beyond the grid
where the best factor is its last, and then beside the best; then the arm is trained on the
verdict's seeds.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean

from mlx_attn.answers.book import Record
from mlx_attn.answers.study import Run, Study

Records = Mapping[str, Record]
"""Finished trainings by key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The search for an arm's learning rates, as far as the records go.

    Attributes:
        losses: By factor, a loss for each tuning seed, infinite where a training diverged; only
            factors that are finished.
        wanted: Runs that the next decision needs; empty once it is settled.
        best: The factor with the lowest mean loss; None while none is finished.
        interior: Whether factors on both sides of the best were tried.
    """

    losses: Mapping[float, tuple[float, ...]]
    wanted: tuple[Run, ...] = ()
    best: float | None = None
    interior: bool = False

    @property
    def settled(self) -> bool:
        """Whether the arm can be trained for its verdict."""
        return not self.wanted and self.best is not None


@dataclass(frozen=True, slots=True)
class ArmPlan:
    """One arm in one world: its search, and its verdict's runs once that is settled."""

    study: Study
    records: Records
    world: str
    arm: str

    @property
    def search(self) -> Search:
        """The search as far as it is; that of the arm whose rates this one takes, if there is."""
        if other := self.study.arms[self.arm].rates_of:
            return ArmPlan(self.study, self.records, self.world, other).search
        if not self.study.protocol.tuning_seeds:
            return Search(losses={}, best=self.study.protocol.factors[0])
        found = self._factors()
        return found if found.wanted else self._refined(found)

    def verdict_runs(self, search: Search | None = None) -> list[Run]:
        """The runs of the verdict, seed by seed; none before the search is settled."""
        search = search or self.search
        if not search.settled or search.best is None:
            return []
        seeds = self.study.protocol.verdict_seeds[: self.study.arms[self.arm].seeds or None]
        return self._runs(seeds, search.best)

    def wanted(self) -> list[Run]:
        """What can be trained now and is not."""
        search = self.search
        return [*search.wanted] or self._missing(self.verdict_runs(search))

    def verdict(self) -> list[Record]:
        """The verdict's records, seed by seed; none before all are there."""
        runs = self.verdict_runs()
        return [] if self._missing(runs) else [self.records[self.study.key(run)] for run in runs]

    def losses(self) -> list[float] | None:
        """The verdict's losses, seed by seed, infinite where one diverged; None before all are."""
        losses = [record.loss for record in self.verdict()]
        return [inf if loss is None else loss for loss in losses] or None

    def _factors(self) -> Search:
        protocol, factors = self.study.protocol, [*self.study.protocol.factors]
        losses: dict[float, tuple[float, ...]] = {}
        best, interior = factors[0], False
        for _ in range(protocol.extensions + 1):
            for factor in factors:
                runs = self._runs(protocol.tuning_seeds, factor)
                if missing := self._missing(runs):
                    # All factors at once: the next decision needs every one of them.
                    rest = [
                        run
                        for other in factors[factors.index(factor) + 1 :]
                        for run in self._missing(self._runs(protocol.tuning_seeds, other))
                    ]
                    return Search(losses=losses, wanted=(*missing, *rest))
                losses[factor] = tuple(map(self._loss, runs))
            best = min(losses, key=lambda factor: fmean(losses[factor]))
            if interior := min(losses) < best < max(losses):
                break
            factors.append(best / 2 if best == min(losses) else best * 2)
        return Search(losses=losses, best=best, interior=interior)

    def _refined(self, found: Search) -> Search:
        """The search with factors beside the best one."""
        assert found.best is not None
        losses = {**found.losses}
        for ratio in self.study.protocol.refine:
            factor = round(found.best * ratio, 4)
            runs = self._runs(self.study.protocol.tuning_seeds, factor)
            if missing := self._missing(runs):
                return Search(losses=losses, wanted=tuple(missing), best=found.best)
            losses[factor] = tuple(map(self._loss, runs))
        best = min(losses, key=lambda factor: fmean(losses[factor]))
        return Search(losses=losses, best=best, interior=found.interior)

    def _runs(self, seeds: Sequence[int], scale: float) -> list[Run]:
        return [Run(world=self.world, arm=self.arm, seed=seed, scale=scale) for seed in seeds]

    def _missing(self, runs: Sequence[Run]) -> list[Run]:
        return [run for run in runs if self.study.key(run) not in self.records]

    def _loss(self, run: Run) -> float:
        loss = self.records[self.study.key(run)].loss
        return inf if loss is None else loss


def arm_plans(
    study: Study,
    records: Records,
    worlds: Collection[str] = (),
    questions: Collection[str] = (),
) -> list[ArmPlan]:
    """All arms that are asked for, in all worlds or some, the most important first."""
    asked = {
        (world, study.arm_in(world, arm))
        for question, contrast, world in study.asked()
        for arm in contrast.arms
        if (not worlds or world in worlds) and (not questions or question in questions)
    }
    # What tokens are worth is asked of every world.
    asked |= {(world, study.shorter) for world, _ in asked if study.shorter}
    arms = [*dict.fromkeys((*study.protocol.first, *study.arms))]
    worlds_in_order = [*study.worlds]

    def order(pair: tuple[str, str]) -> tuple[bool, int, int]:
        world, arm = pair
        late = arm not in study.protocol.first
        return late, worlds_in_order.index(world), arms.index(arm)

    return [ArmPlan(study, records, *pair) for pair in sorted(asked, key=order)]


def searches(study: Study, records: Records) -> dict[str, dict[str, Search]]:
    """The settled searches of all arms that have one of their own, by arm and world."""
    found: dict[str, dict[str, Search]] = {}
    if len(study.protocol.factors) == 1:
        return found
    for plan in arm_plans(study, records):
        if not study.arms[plan.arm].rates_of and (search := plan.search).settled:
            found.setdefault(plan.arm, {})[plan.world] = search
    return found


def wanted_runs(plans: Sequence[ArmPlan]) -> Iterator[Run]:
    """What can be trained now, in order, each training once."""
    seen: set[str] = set()
    for plan in plans:
        for run in plan.wanted():
            key = plan.study.key(run)
            if key not in seen:
                seen.add(key)
                yield run
