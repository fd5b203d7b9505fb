"""The results of a comparison: plain data, written as JSON and read back without loss.

Also the losses of runs of other programs, read from a table and judged alike.
"""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

import msgspec

from mlx_attn.comparison.decisions import Case, Verdict, judge_all
from mlx_attn.comparison.regression import adjusted
from mlx_attn.comparison.solving import SOLVED, Solving, TimeToSolve
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.files import write_text
from mlx_attn.records import as_record, read_record, read_text
from mlx_attn.training.evaluation import Evaluation

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One validation in the course of a training; its loss is in nats per scored token.

    Of a text it covers the same few windows for every arm, at the end and of tasks all of them.
    Only tasks have an accuracy. A study's trial has the loss of the tokens that call for each
    ability, `abilities`, if the text has spans for them.
    """

    step: int
    tokens: int
    seconds: float
    val_loss: float
    accuracy: float | None = None
    abilities: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPoint:
    """Effective ranks of S_h = W_query_h W_key_h^T and V_h O_h, averaged over heads and layers."""

    step: int
    scores: float
    value_outputs: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult(Evaluation):
    """One finished trial: its last evaluation, over the whole validation text, and its cost.

    `above_floor` is in nats per scored token, also for texts.
    """

    seed: int  # of weights, batches and dropout; trials of the same seed are pairs
    lr_scale: float
    steps: int
    tokens: int
    curve: tuple[Point, ...]  # the validations during training, the last one included
    ranks: tuple[RankPoint, ...]
    tok_s: float  # tokens per second of training
    seconds: float  # training time, validation included
    peak_memory: int  # bytes
    sample: str  # a greedy continuation by the trained model
    # The one that trained it: chip, system, mlx, device, and a digest of its arithmetic; empty in
    # records of 0.1.0.
    machine: Mapping[str, str] = field(default_factory=dict)
    # The loss of the tokens that call for each ability, in nats per such token.
    by_ability: Mapping[str, float] = field(default_factory=dict)
    params: int = 0  # of the model; 0 in records of 0.1.0
    start: str = ""  # of a study's trial, a digest of all weights before the first step

    @property
    def time_to_solve(self) -> TimeToSolve | None:
        """Steps until the task was solved; None for a text."""
        # Only tasks have an accuracy.
        measured = [point for point in self.curve if point.accuracy is not None]
        right = [p.step for p in measured if p.accuracy is not None and p.accuracy >= SOLVED]
        time = TimeToSolve(steps=min(right, default=self.steps), solved=bool(right))
        return time if measured else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmResult:
    """One arm under one budget, with a training per seed."""

    arm: str
    settings: Mapping[str, Any]  # those that differ from the other arms', flat
    lr_scale: float  # the tuned factor of the learning rates
    params: int
    multiply_adds: int  # per token, forward, at full context
    cache_bytes_per_token: int
    trainings: Annotated[tuple[TrialResult, ...], msgspec.Meta(min_length=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetResult:
    """All arms under one budget ("steps", "seconds" or "params"), the control first.

    `refused` has the reason by arm, `verdicts` each other arm against the control, `solving` how
    often and how soon every arm solves a task; empty for texts, and if no training solves it.
    """

    budget: str
    arms: Annotated[tuple[ArmResult, ...], msgspec.Meta(min_length=1)]
    refused: Mapping[str, str]
    verdicts: Mapping[str, Verdict]
    solving: Mapping[str, Solving] = field(default_factory=dict)

    def word(self, arm: str) -> str:
        """Return the word on an arm: of a task by how soon it is solved, else by the mean loss.

        How soon cannot show that forms are equivalent, the mean loss can.
        """
        of_loss = self.verdicts[arm].word
        if arm not in self.solving:
            return of_loss
        by_solving = self.solving[arm].word
        # Tests of time can show a difference but never equivalence.
        return of_loss if (by_solving, of_loss) == ("undecided", "equivalent") else by_solving


def times_to_solve(arms: Sequence[ArmResult]) -> dict[str, list[TimeToSolve]]:
    """Return the steps until trainings solved their task, by arm; empty for texts."""
    each = {arm.arm: [training.time_to_solve for training in arm.trainings] for arm in arms}
    # All or nothing: one text among the arms would make the others incomparable.
    times = {arm: [time for time in own if time] for arm, own in each.items()}
    return times if times and all(times.values()) else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """The search for the learning rate of one arm, on seeds that no verdict uses."""

    arm: str
    # The mean loss by factor, in nats per token; None where a training diverged.
    losses: Mapping[float, float | None]
    best: float
    interior: bool  # whether factors on both sides of the best were tried
    seeds: tuple[int, ...]
    # The losses by factor, seed by seed, of factors with which no training diverged.
    runs: Mapping[float, tuple[float, ...]] = field(default_factory=dict)
    # The chosen factor of the rate of queries and keys, and the mean loss by factor, with the best
    # factor of all rates; empty if it was not searched for.
    query_key_lr: float = 1.0
    query_key_losses: Mapping[float, float | None] = field(default_factory=dict)

    @property
    def at_edge(self) -> bool:
        """True if a chosen factor is the last one tried, so that a better one may lie beyond it."""
        second = self.query_key_losses
        return not self.interior or self.query_key_lr in (
            min(second, default=0),
            max(second, default=0),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AATest:
    """The A/A run: the control against itself with other initial weights."""

    # Between two trainings with the same seed, one from a start of which every weight is moved by
    # one rounding, in nats per token.
    rounding: float
    seed_spread: float  # standard deviation of the control's loss between seeds, in nats per token
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The answer to "is it needed?", and everything that it rests on."""

    name: str
    question: str
    command: str  # the command that reproduces it
    control: str
    settings: Mapping[str, Any]  # what all arms share, flat
    delta: float  # differences smaller than this, in nats per token, count as none
    confidence: float
    # Name, digest and floor (nats per token; None if unknown) of the validation text.
    text: Mapping[str, Any]
    versions: Mapping[str, Any]
    noise: AATest | None
    tunings: tuple[Tuning, ...]
    budgets: Annotated[tuple[BudgetResult, ...], msgspec.Meta(min_length=1)]
    seconds: float  # training time of all trainings together
    reference: str = ""  # the arm that lacks the part in question, or ""
    # Numbers of seeds after which it was to be looked at; empty: once, after all.
    looks: tuple[int, ...] = ()
    # The share of the control's tokens that delta is worth; 0 if it was not asked.
    delta_tokens: float = 0.0
    # Losses of the control with further seeds, which differences are adjusted for.
    further_control: tuple[float, ...] = ()
    format: int = field(default=FORMAT)

    def budget(self, name: str) -> BudgetResult:
        """Return the result under one budget."""
        return next(result for result in self.budgets if result.budget == name)

    def as_dict(self) -> dict[str, Any]:
        """Return the whole result as one JSON object."""
        return asdict(self)


COMPARISON = "comparison.json"


def save_comparison(comparison: Comparison, directory: Path) -> None:
    """Write a comparison into its directory."""
    # Strict JSON: a NaN or an infinity here is a mistake, and raises.
    content = json.dumps(comparison.as_dict(), indent=1, allow_nan=False)
    write_text(directory / COMPARISON, content + "\n")


def read_comparison(directory: Path) -> Comparison:
    """Return the comparison in a directory; RunError if it cannot be read."""
    file = directory / COMPARISON
    if not file.is_file():
        raise RunError(f"{directory} holds no comparison: there is no {COMPARISON} in it")
    record = read_record(file)
    if record.get("format", FORMAT) != FORMAT:
        raise RunError(
            f"{file} has format {record['format']}, this version reads {FORMAT}: install the "
            "version of mlx_attn that wrote it"
        )
    return as_record(record, Comparison, f"{file}: not a whole comparison, make it again")


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

    Runs of the first arm that are in no pair adjust the differences, see `regression`.

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
    cases: dict[str, Case] = {}
    for arm, of_arm in others:
        # Only seeds that both arms have form pairs.
        pairs = [(of_arm[seed], of_control[seed]) for seed in of_arm if seed in of_control]
        if not pairs:
            raise ConfigError(
                f"{arm} and {control} have no seed in common: runs are compared in pairs"
            )
        cases[arm] = Case(
            differences=tuple(a - c for a, c in pairs),
            margin=delta,
            world="arms",
            control=tuple(c for _, c in pairs),
            further=tuple(loss for seed, loss in of_control.items() if seed not in of_arm),
        )
    return judge_all(adjusted(cases), confidence)
