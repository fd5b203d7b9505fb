"""Which trainings a verdict rests on: every arm, under every budget, with every seed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean
from typing import Any

from mlx_attn.errors import ConfigError
from mlx_attn.lab.compare.budgets import changes_for
from mlx_attn.lab.compare.cell import Cell
from mlx_attn.lab.compare.protocol import AGAIN_SEED, Protocol
from mlx_attn.lab.compare.result import Training
from mlx_attn.lab.compare.tuning import Choice, trained

FEWEST_SEEDS, MOST_SEEDS = 3, 30
"""How many seeds a plan by time may choose."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The trainings of a comparison's verdict.

    Attributes:
        protocol: The comparison.
        choices: The arms with their learning rates, the control first.
        vocab_size: Tokens of the text's vocabulary.
        speeds: Tokens per second of each arm, by name.
    """

    protocol: Protocol
    choices: Sequence[Choice]
    vocab_size: int
    speeds: Mapping[str, float]

    @property
    def control(self) -> Choice:
        """What the other arms are compared with."""
        return self.choices[0]

    def changes(self, budget: str, choice: Choice) -> dict[str, Any]:
        """What an arm changes under a budget.

        Raises:
            ConfigError: The arm cannot be had under it.
        """
        return changes_for(
            budget, self.protocol, self.control, choice, self.vocab_size, self.speeds
        )

    def trainings(self, budget: str, choice: Choice, seeds: Sequence[int]) -> list[Cell]:
        """The trainings of an arm under a budget, seed by seed.

        Raises:
            ConfigError: The arm cannot be had under this budget.
        """
        changes = self.changes(budget, choice)
        return [trained(self.protocol, choice, seed, changes) for seed in seeds]

    def again(self, seeds: Sequence[int]) -> list[Cell]:
        """The control once more, seed by seed: the same batches, other weights to start with."""
        return [
            trained(self.protocol, self.control, seed, {"init_seed": AGAIN_SEED + seed})
            for seed in seeds
        ]

    def repeat(self, seeds: Sequence[int]) -> Cell:
        """The control's first training once more, the same in every respect."""
        return replace(trained(self.protocol, self.control, seeds[0]), repeat=1)

    def all(self, seeds: Sequence[int]) -> Iterator[Cell]:
        """Every training, seed by seed, so that an interruption leaves whole pairs behind."""
        if self.protocol.noise:
            yield self.repeat(seeds)
        for seed in seeds:
            yield from self._of_seed(seed)

    def seeds_within(self, seconds: float, tuning: Mapping[str, Sequence[Training]]) -> int:
        """How many seeds' trainings take so long, judged by the time that tuning took.

        Args:
            seconds: Of all processes together.
            tuning: Trainings of each arm.

        Raises:
            ConfigError: There is no time for `FEWEST_SEEDS`.
        """
        per_seed = self.seconds(tuning)
        seeds = int(seconds / per_seed)
        if seeds < FEWEST_SEEDS:
            raise ConfigError(
                f"{self.protocol.minutes:g} minutes leave time for {max(seeds, 0)} seeds and at "
                f"least {FEWEST_SEEDS} are needed: give about {FEWEST_SEEDS * per_seed / 60:.0f} "
                "more minutes of processor time, fewer arms, fewer budgets or fewer steps"
            )
        return min(seeds, MOST_SEEDS)

    def seconds(self, tuning: Mapping[str, Sequence[Training]]) -> float:
        """What the trainings of one seed take, of all processes together."""
        each = {name: fmean(t.seconds for t in done) for name, done in tuning.items() if done}
        usual = fmean(each.values())
        cells = {cell.digest: cell for cell in self._of_seed(0)}.values()
        return sum(each.get(cell.arm, usual) * self._length(cell) for cell in cells)

    def _of_seed(self, seed: int) -> Iterator[Cell]:
        for choice, budget in chain.from_iterable(
            ((choice, budget) for budget in self.protocol.budgets) for choice in self.choices
        ):
            try:
                yield from self.trainings(budget, choice, [seed])
            except ConfigError:
                continue  # The result says that this arm is refused, and why.
        if self.protocol.noise:
            yield from self.again([seed])

    def _length(self, cell: Cell) -> float:
        """How much longer than its arm's tuning a training is."""
        return cell.settings["steps"] / self.protocol.settings(self.control.arm).training.steps
