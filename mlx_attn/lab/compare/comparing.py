"""A comparison from beginning to end: tune, plan, train, judge. An iterator of events.

All that takes time is done in trainings that are kept as they finish, so doing the same comparison
again after an interruption takes up where it was and ends with the same numbers.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from mlx_attn.lab.compare.cell import Cell, corpus_of
from mlx_attn.lab.compare.crew import Trains
from mlx_attn.lab.compare.events import Began, Concluded, Event, Finished, Planned
from mlx_attn.lab.compare.findings import conclude
from mlx_attn.lab.compare.layout import Layout
from mlx_attn.lab.compare.protocol import Protocol
from mlx_attn.lab.compare.result import Training, Tuning
from mlx_attn.lab.compare.tuning import Choice, Tuner, trained
from mlx_attn.lab.statistics import resolvable


class Comparing:
    """One comparison.

    Args:
        protocol: What to do.
        crew: Does the trainings, and keeps them.
        versions: What made the result, for the record.

    Raises:
        ConfigError: An arm's settings cannot work.
        RunError: The text cannot be read.
    """

    def __init__(self, protocol: Protocol, crew: Trains, versions: Mapping[str, Any]):
        self.crew, self.store = crew, crew.store
        self.versions = {**versions, "trained": crew.way}
        # Prepared here, once, before several processes want it at the same time.
        self.corpus = corpus_of(protocol.settings(protocol.arms[0]))
        self.protocol = replace(protocol, text=self.corpus.digest)
        self.vocab_size = self.corpus.tokenizer.vocab_size
        for arm in protocol.arms:
            protocol.settings(arm).model_config(self.vocab_size)

    def __iter__(self) -> Iterator[Event]:
        """Do what is not done yet.

        Raises:
            ConfigError: The time is too short.
            RunError: A process failed, the disk cannot be written, or the control diverged.
        """
        tuner = Tuner(self.protocol, self.store, lambda cells: self._train("tuning", cells))
        choices, tunings = yield from tuner()
        tuning = yield from self._timed(tuner, choices, tunings)
        speeds = {name: median(t.tok_s for t in done) for name, done in tuning.items()}
        layout = Layout(self.protocol, choices, self.vocab_size, speeds)
        seeds = range(self._seeds(layout, tuning))
        minutes = layout.seconds(tuning) * len(seeds) / self.crew.size / 60
        yield Planned(len(seeds), minutes, self._resolves(tuner, choices, len(seeds)))
        yield from self._train("verdict", layout.all(seeds))
        yield Concluded(conclude(layout, self.store, self.corpus, tunings, seeds, self.versions))

    def _train(self, stage: str, cells: Iterable[Cell]) -> Generator[Event, None, None]:
        """Do the trainings that the store lacks."""
        wanted = {cell.digest: cell for cell in cells}
        missing = self.crew.missing(wanted.values())
        yield Began(stage, len(wanted), len(wanted) - len(missing))
        taken: list[float] = []
        for left, (cell, outcome) in zip(
            range(len(missing) - 1, -1, -1), self.crew(missing), strict=True
        ):
            taken += [outcome.seconds] if isinstance(outcome, Training) else []
            each = sum(taken) / max(1, len(taken))
            yield Finished(cell, outcome, left, left * each / self.crew.size)

    def _timed(
        self, tuner: Tuner, choices: Sequence[Choice], tunings: Sequence[Tuning]
    ) -> Generator[Event, None, dict[str, list[Training]]]:
        """Finished trainings of every arm, for their times: those of tuning, or a first seed."""
        if tunings:
            first = [tuning for tuning in tunings if tuning.knob == "lr"]
            return {t.arm: done for t in first if (done := tuner.trainings(t))}
        cells = [trained(self.protocol, choice, 0) for choice in choices]
        yield from self._train("first seed", cells)
        outcomes = {cell.arm: self.store[cell] for cell in cells}
        return {arm: [o] for arm, o in outcomes.items() if isinstance(o, Training)}

    def _resolves(self, tuner: Tuner, choices: Sequence[Choice], seeds: int) -> float | None:
        """The smallest difference to expect to find, judged by the spread seen while tuning."""
        spread = tuner.spread(choices) if self.protocol.tunes else None
        if not spread or seeds < 2:
            return None
        arms = len(choices) - 1
        return resolvable(spread, seeds, confidence=self.protocol.confidence, arms=arms)

    def _seeds(self, layout: Layout, tuning: Mapping[str, Sequence[Training]]) -> int:
        """Seeds of the verdict. Counted from what trainings took, so that resuming changes none."""
        if self.protocol.seeds:
            return self.protocol.seeds
        spent = sum(training.seconds for done in tuning.values() for training in done)
        left = 60 * self.protocol.minutes * self.crew.size - spent
        return layout.seeds_within(left, tuning)
