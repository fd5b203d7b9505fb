"""The trainings that a study needs, as a pure function of its records.

`search_rates` looks for each arm's factor of the learning rates on seeds that no verdict uses. Then
the arm is trained on the verdict's seeds.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from studies.book import Record
from studies.study import Study, Trial
from studies.tuning import Search, search_rates

Records = Mapping[str, Record]  # finished trainings by key


@dataclass(frozen=True, slots=True)
class ArmPlan:
    """One arm in one world: its search, and its verdict's runs once the search is settled."""

    study: Study
    records: Records
    world: str
    arm: str

    @property
    def searches(self) -> bool:
        """True if the arm searches for its rates in this world."""
        return not self.study.arms[self.arm].rates_of and self.world not in self.study.rates_from

    @property
    def search(self) -> Search:
        """The search so far: its own, or the search of the arm or world whose rates it takes."""
        if not self.searches:
            arm = self.study.arms[self.arm].rates_of or self.arm
            world = self.study.rates_from.get(self.world, self.world)
            return ArmPlan(self.study, self.records, world, arm).search
        protocol = self.study.protocol
        if not protocol.tuning_seeds:
            factors = self.study.world(self.world).factors
            return Search(losses={}, best=factors.get(self.arm, protocol.factors[0]))
        return search_rates(
            lambda factor, ratio: self._trials(protocol.tuning_seeds, factor, ratio),
            self._loss,
            protocol.factors,
            protocol.extensions,
            protocol.refine,
            protocol.query_key_factors,
        )

    def verdict_trials(self, search: Search | None = None) -> list[Trial]:
        """Return the trials of the verdict by seed; [] until the search is settled."""
        search = search or self.search
        if not search.settled or search.best is None:
            return []
        seeds = self.study.protocol.verdict_seeds[: self.study.arms[self.arm].seeds or None]
        return self._trials(seeds, search.best, search.query_key_lr)

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

    def _trials(self, seeds: Sequence[int], scale: float, query_key_lr: float = 1.0) -> list[Trial]:
        changes = {"query_key_lr": query_key_lr} if query_key_lr != 1 else {}
        return [self.study.trial(self.world, self.arm, seed, scale, changes) for seed in seeds]

    def _missing(self, trials: Sequence[Trial]) -> list[Trial]:
        return [trial for trial in trials if trial.key not in self.records]

    def _loss(self, trial: Trial) -> float | None:
        record = self.records.get(trial.key)
        return record and record.value()


def arm_plans(
    study: Study, records: Records, worlds: Collection[str] = (), questions: Collection[str] = ()
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
        if plan.searches and (search := plan.search).settled:
            settled.setdefault(plan.arm, {})[plan.world] = search
    return settled


def wanted_trials(plans: Iterable[ArmPlan]) -> list[Trial]:
    """Return the trials that can be trained now, in order and without duplicates."""
    return [*{trial.key: trial for plan in plans for trial in plan.wanted()}.values()]
