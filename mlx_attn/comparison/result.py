"""The results of a comparison: plain data, written as JSON.

Also the losses of runs of other programs, read from a table and judged alike.
"""

import csv
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from mlx_attn.comparison.judging import Contrast, Solving, Verdict, judge
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.files import write_text
from mlx_attn.records import read_text
from mlx_attn.training.evaluation import Evaluation

COMPARISON = "comparison.json"

SOLVED = 0.99
"""The share of the scored tokens predicted right from which a task counts as solved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One validation in the course of a training; its loss is in nats per scored token.

    Of a text it covers the same few windows for every arm, at the end and of tasks all of them.
    Only tasks have an accuracy.
    """

    step: int
    val_loss: float
    accuracy: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult(Evaluation):
    """One finished trial: its last evaluation, over the whole validation text, and its cost.

    `above_floor` is in nats per scored token, also for texts.
    """

    seed: int  # of weights, batches and dropout; trials of the same seed are pairs
    steps: int
    tokens: int
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
    settings: Mapping[str, Any]  # those that differ from the other arms', flat
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
class Comparison:
    """The answer to "is it needed?", and everything that it rests on."""

    name: str
    question: str
    command: str  # the command that reproduces it
    control: str
    reference: str  # the arm that lacks the part in question, or ""
    settings: Mapping[str, Any]  # what all arms share, flat
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
        """The arms that have a verdict, in order, without the reference."""
        return [arm for arm in self.verdicts if arm != self.reference]

    def word(self, arm: str) -> str:
        """Return the word on an arm: of a task by how often it is solved, else by the mean loss.

        How often cannot show that forms are the same, the mean loss can.
        """
        of_loss = self.verdicts[arm].word
        if arm not in self.solving:
            return of_loss
        of_task = self.solving[arm].word
        return of_loss if (of_task, of_loss) == ("not known", "the same") else of_task

    def as_dict(self) -> dict[str, Any]:
        """Return the whole result as one JSON object."""
        return asdict(self)


def save_comparison(comparison: Comparison, directory: Path) -> None:
    """Write a comparison into its directory."""
    # Strict JSON: a NaN or an infinity here is a mistake, and raises.
    content = json.dumps(comparison.as_dict(), indent=1, allow_nan=False)
    write_text(directory / COMPARISON, content + "\n")


def read_losses(file: Path) -> dict[str, dict[str, float]]:
    """Return the losses of a CSV file by arm and seed, in the order of its lines.

    Raises:
        RunError: The file lacks a column, a loss is not a number, or an arm repeats a seed.
    """
    rows = csv.DictReader(read_text(file).splitlines())
    columns = ("arm", "seed", "loss")
    if missing := [name for name in columns if name not in (rows.fieldnames or ())]:
        raise RunError(
            f"{file}: its first line must name the columns {', '.join(columns)}; it lacks "
            f"{', '.join(missing)}"
        )
    losses: dict[str, dict[str, float]] = {}
    # Line 1 has the names of the columns.
    for line, row in enumerate(rows, 2):
        arm, seed, loss = (str(row[name] or "").strip() for name in columns)
        if seed in losses.setdefault(arm, {}):
            raise RunError(f"{file}, line {line}: {arm} has seed {seed} twice: keep one of them")
        try:
            losses[arm][seed] = float(loss)
        except ValueError as error:
            raise RunError(f"{file}, line {line}: loss '{loss}' is not a number") from error
    return losses


def judge_losses(
    losses: Mapping[str, Mapping[str, float]], delta: float, confidence: float
) -> dict[str, Verdict]:
    """Judge every arm against the first one, in pairs of the same seed.

    Raises:
        ConfigError: There is one arm, two arms share no seed, or a loss is not finite.
    """
    if len(losses) < 2:
        raise ConfigError(f"a comparison needs two arms: got {', '.join(losses) or 'none'}")
    (control, of_control), *others = losses.items()
    for arm, of_arm in losses.items():
        if failed := [seed for seed, loss in of_arm.items() if not isfinite(loss)]:
            raise ConfigError(
                f"the losses of {arm} must be finite numbers, and {of_arm[failed[0]]} of seed "
                f"{failed[0]} is not: leave out what diverged"
            )
    contrasts: dict[str, Contrast] = {}
    for arm, of_arm in others:
        # Only seeds that both arms have form pairs.
        pairs = tuple(
            loss - of_control[seed] for seed, loss in of_arm.items() if seed in of_control
        )
        if not pairs:
            raise ConfigError(
                f"{arm} and {control} have no seed in common: runs are compared in pairs"
            )
        contrasts[arm] = Contrast(differences=pairs)
    return judge(contrasts, delta, confidence)
