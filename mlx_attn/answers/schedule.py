"""The trainings that a study still needs, as a pure function of its records.

`search_rates` looks for each arm's factor of the learning rates on seeds that no verdict uses. Then
the arm is trained on the verdict's seeds.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from mlx_attn.answers.book import Record
from mlx_attn.answers.study import Study
from mlx_attn.comparison.plan import Trial
from mlx_attn.comparison.tuning import Search, search_rates

Records = Mapping[str, Record]
"""Finished trainings by key."""


@dataclass(frozen=True, slots=True)
class ArmPlan:
    """One arm in one world: its search, and its verdict's runs once the search is settled."""

    study: Study
    records: Records
    world: str
    arm: str

    @property
    def search(self) -> Search:
        """The search so far: its own, or the search of the arm whose rates it takes."""
        if other := self.study.arms[self.arm].rates_of:
            return ArmPlan(self.study, self.records, self.world, other).search
        protocol = self.study.protocol
        if not protocol.tuning_seeds:
            factors = self.study.world(self.world).factors
            return Search(losses={}, best=factors.get(self.arm, protocol.factors[0]))
        return search_rates(
            lambda factor: self._trials(protocol.tuning_seeds, factor),
            self._loss,
            protocol.factors,
            protocol.extensions,
            protocol.refine,
        )

    def verdict_trials(self, search: Search | None = None) -> list[Trial]:
        """Return the trials of the verdict by seed; [] until the search is settled."""
        search = search or self.search
        if not search.settled or search.best is None:
            return []
        seeds = self.study.protocol.verdict_seeds[: self.study.arms[self.arm].seeds or None]
        return self._trials(seeds, search.best)

    def wanted(self) -> list[Trial]:
        """Return the missing trials that can be trained now."""
        search = self.search
        return [*search.wanted] or self._missing(self.verdict_trials(search))

    def verdict(self) -> list[Record]:
        """Return the records of the verdict by seed; [] until all of them exist."""
        trials = self.verdict_trials()
        return [] if self._missing(trials) else [self.records[trial.key] for trial in trials]

    def losses(self, outcome: str = "") -> list[float] | None:
        """Return the verdict's losses, or another outcome, by seed; None until all exist.

        A training that diverged has the loss inf.
        """
        return [record.value(outcome) for record in self.verdict()] or None

    def _trials(self, seeds: Sequence[int], scale: float) -> list[Trial]:
        return [self.study.trial(self.world, self.arm, seed, scale) for seed in seeds]

    def _missing(self, trials: Sequence[Trial]) -> list[Trial]:
        return [trial for trial in trials if trial.key not in self.records]

    def _loss(self, trial: Trial) -> float | None:
        record = self.records.get(trial.key)
        return record and record.value()


def arm_plans(
    study: Study,
    records: Records,
    worlds: Collection[str] = (),
    questions: Collection[str] = (),
) -> list[ArmPlan]:
    """Return the plans of all or some worlds and questions, the most important first."""
    asked = {
        (world, study.arm_in(world, arm))
        for question, contrast, world in study.asked()
        for arm in contrast.arms
        if (not worlds or world in worlds) and (not questions or question in questions)
    }
    # Every world also needs the arm that measures the worth of tokens.
    asked |= {(world, study.shorter) for world, _ in asked if study.shorter}
    arms = [*dict.fromkeys((*study.protocol.first, *study.arms))]
    worlds_in_order = [*study.worlds]

    def order(pair: tuple[str, str]) -> tuple[bool, int, int]:
        world, arm = pair
        late = arm not in study.protocol.first
        return late, worlds_in_order.index(world), arms.index(arm)

    return [ArmPlan(study, records, *pair) for pair in sorted(asked, key=order)]


def searches(study: Study, records: Records) -> dict[str, dict[str, Search]]:
    """Return the settled searches of all arms with their own search, by arm and world."""
    settled: dict[str, dict[str, Search]] = {}
    if len(study.protocol.factors) == 1:
        return settled
    for plan in arm_plans(study, records):
        if not study.arms[plan.arm].rates_of and (search := plan.search).settled:
            settled.setdefault(plan.arm, {})[plan.world] = search
    return settled


def wanted_trials(plans: Iterable[ArmPlan]) -> list[Trial]:
    """Return the trials that can be trained now, in order and without duplicates."""
    return [*{trial.key: trial for plan in plans for trial in plan.wanted()}.values()]
