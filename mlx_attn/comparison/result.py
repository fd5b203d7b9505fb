"""The results of a comparison: plain data, written as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from statistics import median
from typing import Any

from mlx_attn.records import Count
from mlx_attn.training.evaluation import Evaluation

SOLVED = 0.99
"""The share of the scored tokens predicted right from which a task counts as solved."""

MOST_SEEDS = 1000
"""So many seeds or more are not counted, where the seeds are named that would decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One validation in the course of a training; its loss is in nats per scored token.

    Of a task it covers all windows, of a text a few, moved by what all of them add at the end. Only
    tasks have an accuracy.
    """

    step: Count
    val_loss: float
    accuracy: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult(Evaluation):
    """One finished trial: its last evaluation, over the whole validation text, and its cost.

    `above_floor` is in nats per scored token, also for texts.
    """

    seed: int  # of weights, batches and dropout; trials of the same seed are pairs
    steps: int
    tokens: Count
    curve: tuple[Point, ...]  # the validations during training, the last one included
    tok_s: float  # tokens per second of training
    seconds: float  # training time, validation included
    # What trained it: the chip, and all that another machine may round differently.
    machine: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_of_task(self) -> bool:
        """True if it was trained on a task, which can be solved."""
        return any(point.accuracy is not None for point in self.curve)

    @property
    def steps_to_solve(self) -> int | None:
        """Steps until the task was solved; None if it never was, and for a text."""
        solved = (p.step for p in self.curve if p.accuracy is not None and p.accuracy >= SOLVED)
        return min(solved, default=None)

    @property
    def step_seconds(self) -> float:
        """Seconds of one training step."""
        return self.tokens / self.steps / self.tok_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmResult:
    """One arm, with a training per seed."""

    arm: str
    lr_scale: float  # the tuned factor of the learning rates
    params: int
    cache_bytes_per_token: int
    trainings: tuple[TrialResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """The search for the learning rate of one arm, on seeds that no verdict uses."""

    arm: str
    # The mean loss by factor, in nats per token; None where a training diverged.
    losses: Mapping[float, float | None]
    best: float
    interior: bool  # whether factors on both sides of the best were tried
    seeds: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """An arm judged against the control; a positive difference of loss means that it is worse.

    Without a spread, of one seed or of equal differences but 0, the word is "not known", there is
    no interval, and the p-value is 1.
    """

    word: str  # "better" has a lower loss; or "worse", "the same" within the margin, "not known"
    differences: tuple[float, ...]  # seed by seed, in nats per token
    mean: float
    interval: tuple[float, float] | None  # of the mean, with the confidence of the comparison
    p_holm: float  # that the mean is 0, corrected for the number of arms
    margin: float  # differences below it count as none
    lent: int  # degrees of freedom from other pairs, beyond those of the differences
    # Seeds, these included, that would decide four times out of five, if these were the true mean
    # and spread; None if decided.
    seeds_needed: int | None
    share: float | None  # the mean as a share of the part's worth; None if that is not shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Solving:
    """How often and how soon an arm solves a task."""

    solved: int  # of its trainings
    runs: int  # its trainings
    median_steps: float | None  # until it was solved; None unless more than half solved it
    # "better" if more of them solve it than of the control's, "worse" if fewer, or "not known"; ""
    # for the control.
    word: str = ""
    p_holm: float | None = None  # of Fisher's test against the control; None for the control

    @classmethod
    def of(cls, steps: Sequence[int | None]) -> "Solving":
        """Count trainings by the steps after which they had solved it; None if they never did."""
        half = median(inf if each is None else each for each in steps)
        solved = sum(each is not None for each in steps)
        return cls(solved=solved, runs=len(steps), median_steps=half if isfinite(half) else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The answer to "is it needed?", and everything that it rests on."""

    name: str
    question: str
    command: str  # the command that reproduces it
    control: str
    reference: str  # the arm that lacks the part in question, or ""
    settings: Mapping[str, Any]  # what all arms share, flat
    # All settings of every arm, flat; learning rates before `lr_scale`.
    settings_by_arm: Mapping[str, Mapping[str, Any]]
    delta: float  # differences smaller than this, in nats per token, count as none
    delta_tokens: float  # the share of the control's tokens that delta is worth; 0 if not asked
    confidence: float
    # Name, digest and floor (nats per token; None if unknown) of the validation text.
    text: Mapping[str, Any]
    versions: Mapping[str, Any]
    tunings: tuple[Tuning, ...]
    arms: tuple[ArmResult, ...]  # the control first
    diverged: Mapping[str, str]  # arms without a result, with the reason
    verdicts: Mapping[str, Verdict]  # each other arm against the control
    solving: Mapping[str, Solving]  # how often arms solve a task; empty if none does, and for texts
    seconds: float  # training time of all trainings together

    @property
    def judged(self) -> list[str]:
        """The arms with a verdict, and those that diverged, without control and reference."""
        return [arm for arm in (*self.verdicts, *self.diverged) if arm != self.reference]

    def word(self, arm: str) -> str:
        """Return the word on an arm: of a task by how often it is solved, else by the mean loss.

        How often cannot show that forms are the same, the mean loss can; who diverged is worse.
        """
        if arm in self.diverged:
            return "worse"
        of_loss = self.verdicts[arm].word
        if arm not in self.solving:
            return of_loss
        of_task = self.solving[arm].word
        return of_loss if (of_task, of_loss) == ("not known", "the same") else of_task
