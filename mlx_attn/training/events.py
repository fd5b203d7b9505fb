"""What the training loop yields: events as values, for whoever shows or stores them."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar


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
        val_loss: Nats per token.
        bits_per_byte: The same per byte of text; None for a task.
        above_floor: Bits per byte above the text's exact entropy, where that is known; for a task,
            nats per scored token above its floor.
        accuracy: Share of a task's answers that are right; None for a text.
        best: Whether this is the lowest loss so far.
        seconds: Training time so far.
    """

    event: ClassVar[str] = "eval"
    step: int
    tokens: int
    val_loss: float
    bits_per_byte: float | None
    above_floor: float | None
    best: bool
    seconds: float
    accuracy: float | None = None


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
        val_loss: Nats per token of the best validation; None where there was none.
        bits_per_byte: The same per byte of text; None for a task.
        params: Trained numbers.
        tok_s: Tokens per second of training, without validations and the first step.
        peak_memory: Bytes.
        seconds: Training time, validation included.
        run: The run directory.
        reason: "done", "time", "patience" or "interrupted".
        above_floor: Bits per byte above the text's exact entropy, where that is known; for a task,
            nats per scored token above its floor.
        abilities: What each ability contributes to `above_floor`.
        accuracy: Share of a task's answers that are right, at the best validation.
    """

    event: ClassVar[str] = "end"
    variant: str
    steps: int
    tokens: int
    val_loss: float | None
    bits_per_byte: float | None
    params: int
    tok_s: float
    peak_memory: int
    seconds: float
    run: str
    reason: str
    above_floor: float | None = None
    abilities: Mapping[str, float] = field(default_factory=dict)
    accuracy: float | None = None


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
    """A report as one JSON object."""
    return {"event": report.event, **asdict(report)}
