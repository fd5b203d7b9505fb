"""What a comparison found, as values that a report shows and a file holds.

Everything here is plain data: written as JSON and read back without a loss.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from mlx_attn.compare.statistics import Verdict
from mlx_attn.errors import RunError
from mlx_attn.files import write_text
from mlx_attn.runs import parsed_object, read_text
from mlx_attn.training.evaluation import Evaluation

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One validation in the course of a training.

    Attributes:
        step: Steps done.
        tokens: Tokens trained on.
        seconds: Training time so far; differs from machine to machine, unlike the rest.
        val_loss: Nats per scored token: of a text over the same few windows for every arm, at the
            end and of tasks over all of them.
        accuracy: Share of scored tokens whose likeliest prediction is right; tasks only.
    """

    step: int
    tokens: int
    seconds: float
    val_loss: float
    accuracy: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPoint:
    """The matrices of all heads after a step, averaged over heads and layers.

    Attributes:
        step: Steps done.
        scores: Effective rank of S_h = W_query_h W_key_h^T.
        value_outputs: Effective rank of V_h O_h.
    """

    step: int
    scores: float
    value_outputs: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult(Evaluation):
    """One finished trial: its last evaluation, over the whole validation text, and its cost.

    Attributes:
        above_floor: Nats per scored token above the exact floor, for texts too, where it is known.
        seed: Of weights, batches and dropout; trials of the same seed are pairs.
        lr_scale: The factor of all learning rates.
        steps: Optimizer steps.
        tokens: Tokens trained on.
        curve: The validations during training, the last one included.
        ranks: The heads' matrices during training.
        tok_s: Tokens per second of training.
        seconds: Training time, validation included.
        peak_memory: Bytes.
        sample: A greedy continuation by the trained model.
    """

    seed: int
    lr_scale: float
    steps: int
    tokens: int
    curve: tuple[Point, ...]
    ranks: tuple[RankPoint, ...]
    tok_s: float
    seconds: float
    peak_memory: int
    sample: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmResult:
    """One contestant under one budget.

    Attributes:
        arm: Its name: a variant, or a variant with settings of its own.
        settings: What distinguishes it from the other arms, flat.
        lr_scale: The tuned factor of the learning rates.
        params: Trained numbers.
        multiply_adds: Per token, forward, at full context.
        cache_bytes_per_token: Bytes remembered per token when decoding.
        trainings: One per seed, in the order of the seeds.
    """

    arm: str
    settings: Mapping[str, Any]
    lr_scale: float
    params: int
    multiply_adds: int
    cache_bytes_per_token: int
    trainings: tuple[TrialResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetResult:
    """All arms under one budget.

    Attributes:
        budget: "steps", "seconds" or "params": what is equal.
        arms: The arms, the control first.
        refused: Arms that cannot be had under this budget, with the reason.
        verdicts: Every arm but the control against the control, by the arm's name.
    """

    budget: str
    arms: tuple[ArmResult, ...]
    refused: Mapping[str, str]
    verdicts: Mapping[str, Verdict]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """How the learning rate of one arm was found, on seeds of its own.

    Attributes:
        arm: Its name.
        losses: The mean loss for each factor of the learning rates, in nats per token; None where
            the training diverged.
        best: The factor with the lowest mean.
        interior: Whether factors on both sides of it were tried.
        seeds: The seeds that the means are over.
        knob: What the factor multiplies: "lr", all learning rates, or "merged_lr", that of S alone.
    """

    arm: str
    losses: Mapping[float, float | None]
    best: float
    interior: bool
    seeds: tuple[int, ...]
    knob: str = "lr"


@dataclass(frozen=True, slots=True, kw_only=True)
class AATest:
    """The A/A run: the control against itself.

    Attributes:
        repeat_difference: Largest difference of loss between two trainings with the same seed; 0 on
            a machine that computes reproducibly.
        seed_spread: Standard deviation of the control's loss between seeds, in nats per token.
        verdict: The control against a second set of seeds of itself.
    """

    repeat_difference: float
    seed_spread: float
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The answer to "is it needed?", with all that it rests on.

    Attributes:
        name: Of the comparison's directory.
        question: One sentence for people; "" where there is none.
        command: The command that reproduces it.
        control: The arm that the others are compared with.
        settings: What all arms share, flat.
        delta: Differences smaller than this, in nats per token, count as none.
        confidence: Of the intervals, such as 0.95.
        text: Name, digest and floor (nats per token; None if unknown) of the validation text.
        versions: Of Python, MLX and this package; and the machine.
        noise: The A/A run; None where it was left out.
        tunings: How each arm's learning rate was found.
        budgets: The results, budget by budget.
        seconds: Training time of all trainings together.
    """

    name: str
    question: str
    command: str
    control: str
    settings: Mapping[str, Any]
    delta: float
    confidence: float
    text: Mapping[str, Any]
    versions: Mapping[str, Any]
    noise: AATest | None
    tunings: tuple[Tuning, ...]
    budgets: tuple[BudgetResult, ...]
    seconds: float
    format: int = field(default=FORMAT)

    def budget(self, name: str) -> BudgetResult:
        """The result under one budget."""
        return next(result for result in self.budgets if result.budget == name)

    def as_dict(self) -> dict[str, Any]:
        """All of it as one JSON object."""
        return asdict(self)


def comparison_from(record: Mapping[str, Any]) -> Comparison:
    """The comparison that `Comparison.as_dict` made, also after a trip through JSON.

    Raises:
        ValueError: A value is missing or of another type; the message says which.
    """
    return msgspec.convert(record, Comparison, str_keys=True)


COMPARISON = "comparison.json"
"""The file's name, in the comparison's directory."""


def save_comparison(comparison: Comparison, directory: Path) -> Path:
    """Write a comparison into its directory; returns the file.

    Raises:
        RunError: The file cannot be written.
    """
    content = json.dumps(comparison.as_dict(), indent=1, allow_nan=False)
    write_text(directory / COMPARISON, content + "\n")
    return directory / COMPARISON


def read_comparison(directory: Path) -> Comparison:
    """The comparison that a directory holds.

    Raises:
        RunError: There is none, it is damaged, or another version of the package wrote it.
    """
    file = directory / COMPARISON
    if not file.is_file():
        raise RunError(f"{directory} holds no comparison: there is no {COMPARISON} in it")
    record = parsed_object(read_text(file), str(file))
    if record.get("format", FORMAT) != FORMAT:
        raise RunError(
            f"{file} has format {record['format']}, this version reads {FORMAT}: install the "
            "version of mlx_attn that wrote it"
        )
    try:
        return comparison_from(record)
    except ValueError as error:
        raise RunError(f"{file} is not a whole comparison ({error}): make it again") from error
