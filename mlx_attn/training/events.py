"""What the training loop yields: events as values, for whoever shows or stores them."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from mlx_attn.training.evaluation import Evaluation, evaluation_record


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The training is about to begin, or to go on from `step`."""

    event: ClassVar[str] = "start"
    variant: str
    step: int
    steps: int
    params: int
    tokens_per_step: int
    run: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped:
    """The training loss, averaged over the steps since the last such report.

    Attributes:
        step: Steps done.
        steps: Bound in steps; 0 where there is none.
        tokens: Tokens trained on so far.
        loss: Nats per token.
        grad_norm: The gradient's global norm before clipping, at this step.
        lr: Learning rate of AdamW.
        tok_s: Tokens per second since the last report.
        peak_memory: Bytes.
        seconds: Training time so far.
        seconds_left: An estimate.
    """

    event: ClassVar[str] = "step"
    step: int
    steps: int
    tokens: int
    loss: float
    grad_norm: float
    lr: float
    tok_s: float
    peak_memory: int
    seconds: float
    seconds_left: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """A validation over the whole split.

    Attributes:
        step: Steps done.
        tokens: Tokens trained on so far.
        evaluation: What it found.
        best: Whether this is the lowest loss so far.
        seconds: Training time so far.
    """

    event: ClassVar[str] = "eval"
    step: int
    tokens: int
    evaluation: Evaluation
    best: bool
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracked:
    """The matrices of every head; see `mlx_attn.training.tracking`. Lists are [layer][head].

    Attributes:
        step: Steps done.
        scores: Effective rank, norm and symmetry of S_h.
        value_outputs: The same of V_h O_h.
        drift: How far the heads are from where they started; None where that is not known.
    """

    event: ClassVar[str] = "track"
    step: int
    scores: Mapping[str, list[list[float]]]
    value_outputs: Mapping[str, list[list[float]]]
    drift: Mapping[str, list[list[float]]] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The training is over.

    Attributes:
        variant: Name of the attention variant.
        steps: Steps done.
        tokens: Tokens trained on.
        evaluation: The best validation; None where there was none.
        params: Trained numbers.
        tok_s: Tokens per second of training, without validations and the first step.
        peak_memory: Bytes.
        seconds: Training time, validation included.
        run: The run directory.
        reason: "done", "time", "patience" or "interrupted".
    """

    event: ClassVar[str] = "end"
    variant: str
    steps: int
    tokens: int
    evaluation: Evaluation | None
    params: int
    tok_s: float
    peak_memory: int
    seconds: float
    run: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The loss of one of several trainings is not finite: it ends, and the others go on.

    Attributes:
        step: Steps done.
        message: What happened and what to do, in one line.
    """

    event: ClassVar[str] = "failed"
    step: int
    message: str


Event = Started | Stepped | Evaluated | Tracked | Ended | Failed


def as_record(report: Event) -> dict[str, Any]:
    """A report as one flat JSON object."""
    record = {"event": report.event, **asdict(report)}
    if isinstance(report, Evaluated | Ended):
        del record["evaluation"]
        record |= evaluation_record(report.evaluation)
    if isinstance(report, Evaluated):
        del record["abilities"]  # of the best validation alone, in the last line
    return record
