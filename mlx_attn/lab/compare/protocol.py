"""What a comparison does, decided before it starts: arms, seeds, budgets, and how sure is sure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mlx_attn.errors import ConfigError
from mlx_attn.lab.compare.arms import Arm
from mlx_attn.text.tasks import TASKS
from mlx_attn.training.settings import Settings, resolve

BUDGETS = ("steps", "seconds", "params")
"""What can be equal: optimizer steps, training time, or trained numbers."""

DEFAULTS: dict[str, Any] = {"preset": "nano", "optimizer": "adamw", "lr": 0.02, "steps": 200}
"""The settings that all arms share unless told otherwise.

AdamW, because the claims that are to be settled were made with it, and near its best rate here.
"""

TUNING_SEED, AGAIN_SEED = 10_000, 20_000
"""Where the seeds of tuning and of the A/A run's other weights begin: never a verdict's seeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """A comparison to do.

    Attributes:
        arms: The contestants; the first is the control.
        shared: Settings that all arms share, flat, over `DEFAULTS`.
        seeds: Seeds for the verdict; 0 is as many as `minutes` have room for.
        budgets: What is equal, each with trainings of its own.
        delta: Differences smaller than this, in nats per token, count as none.
        confidence: Of the intervals.
        scales: Factors of the learning rates to begin with; only one turns tuning off.
        tuning_seeds: Seeds that each factor is tried on.
        noise: Whether the control also runs against itself.
        minutes: How long all of it may take; 0 is no bound. Counts only where `seeds` is 0.
        name: Of the comparison.
        question: One sentence for people.
        command: What reproduces it.
        text: Digest of the text; `Comparing` fills it in.

    Raises:
        ConfigError: A number cannot work.
    """

    arms: tuple[Arm, ...]
    shared: Mapping[str, Any] = field(default_factory=dict)
    seeds: int = 5
    budgets: tuple[str, ...] = BUDGETS
    delta: float = 0.02
    confidence: float = 0.95
    scales: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0)
    tuning_seeds: int = 2
    noise: bool = True
    minutes: float = 0.0
    name: str = "compare"
    question: str = ""
    command: str = ""
    text: str = ""

    def __post_init__(self):
        for budget in self.budgets:
            if budget not in BUDGETS:
                raise ConfigError(f"budget '{budget}' must be one of {', '.join(BUDGETS)}")
        for holds, complaint in self._conditions():
            if not holds:
                raise ConfigError(complaint)

    def _conditions(self) -> Iterator[tuple[bool, str]]:
        """What must hold, each with what to say where it does not."""
        yield bool(self.budgets), f"no budget: name at least one of {', '.join(BUDGETS)}"
        yield self.seeds >= 0, f"seeds={self.seeds} must be at least 1, or 0 to let the time decide"
        yield self.seeds > 0 or self.minutes > 0, "seeds=0 lets the time decide: give minutes"
        fits = 0.5 <= self.confidence < 1
        yield fits, f"confidence={self.confidence} must be from 0.5 to below 1"
        yield self.delta > 0, f"delta={self.delta} must be above 0: which difference counts as none"
        fits = bool(self.scales) and min(self.scales) > 0
        yield fits, "the factors of the learning rates must be positive, and at least one"
        yield self.tuning_seeds > 0, f"tuning_seeds={self.tuning_seeds} must be at least 1"

    @property
    def tunes(self) -> bool:
        """Whether learning rates are searched for."""
        return len(self.scales) > 1

    def settings(self, arm: Arm, changes: Mapping[str, Any] | None = None) -> Settings:
        """All settings of an arm.

        Raises:
            ConfigError: They cannot work together, or nothing bounds the steps.
        """
        # A task comes with a recipe of its own.
        defaults = {} if self.shared.get("data") in TASKS else DEFAULTS
        settings = resolve(defaults, self.shared, arm.settings, changes or {})
        if not settings.training.steps or settings.training.epochs or settings.training.minutes:
            raise ConfigError("a comparison counts steps: bound it with --steps alone")
        return settings
