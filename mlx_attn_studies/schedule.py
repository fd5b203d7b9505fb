"""The trainings that a study still needs, as a pure function of its records; and training them.

`search_rates` looks for each arm's factor of the learning rates on seeds that no verdict uses. Then
the arm is trained on the verdict's seeds. The runner of comparisons trains, the most important
first.
"""

import platform
import sysconfig
import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

from mlx_attn.comparison.plan import Trial
from mlx_attn.comparison.runner import Runner
from mlx_attn.comparison.trial import Outcome
from mlx_attn.comparison.tuning import Search, search_rates
from mlx_attn.comparison.worker import place_of_text
from mlx_attn.errors import RunError
from mlx_attn.files import write_text
from mlx_attn.text.downloads import data_directory
from mlx_attn.text.sources import read_source
from mlx_attn_studies.book import Record
from mlx_attn_studies.study import Study, World

Records = Mapping[str, Record]  # finished trainings by key
_BATCH = 8  # trials per process that are started before the plans are read again


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


def module_text(modules: Sequence[str]) -> str:
    """Return the joined source of modules of Python's standard library."""
    library = Path(sysconfig.get_path("stdlib"))
    texts: list[str] = []
    for name in modules:
        file = library / f"{name}.py"
        file = file if file.exists() else library / name / "__init__.py"
        if not file.exists():
            raise RunError(f"{file}: this Python has no source of its module {name}")
        texts.append(file.read_text(encoding="utf-8"))
    return "\n".join(texts)


def text_of(world: World) -> str:
    """Return the value of `--data` for a world's text; write modules to one file first."""
    if not world.modules:
        return world.settings["data"]
    path, text = place_of_text(world.text), module_text(world.modules)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        write_text(path, text)
    return str(path)


def check_texts(study: Study, worlds: Iterable[str]) -> None:
    """Raise a RunError if a world's text on this machine is not the registered one."""
    for name in dict.fromkeys(worlds):
        world = study.world(name)
        if not world.text:
            continue
        path = text_of(world)
        digest = read_source(path, data_directory()).digest
        if digest != world.text:
            place_of_text(world.text).unlink(missing_ok=True)
            python = f" (Python {platform.python_version()} is another)" if world.modules else ""
            raise RunError(
                f"{world.settings['data']}: the text has the digest {digest}, and {world.text} is "
                f"registered: its trainings would not be comparable{python}"
            )


def train_wanted(
    study: Study, plans: Callable[[], Iterable[ArmPlan]], runner: Runner, seconds: float = 0.0
) -> Generator[tuple[Trial, Outcome, int], None, None]:
    """Train the missing trials, several at once; yield each after its record is written.

    Closing the generator stops the running trials; finished ones are on disk.

    Args:
        study: The study with the texts to check.
        plans: Returns the plans for the current records, most important first.
        runner: Runs the trials, with the records as its store.
        seconds: No trial starts after this time; 0 sets no limit.

    Yields:
        A trial, its outcome, and the number of missing trials known so far.
    """
    runner.until = time.monotonic() + seconds if seconds else inf
    check_texts(study, (trial.world for trial in wanted_trials(plans())))
    while time.monotonic() < runner.until and (left := wanted_trials(plans())):
        for done, ended in enumerate(runner(left[: _BATCH * runner.size]), 1):
            yield *ended, len(left) - done
