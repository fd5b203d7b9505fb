"""The events that the training loop yields, to be displayed and stored."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from mlx_attn.training.evaluation import Evaluation, evaluation_record


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The training is about to begin, or to resume from `step`."""

    event: ClassVar[str] = "start"
    variant: str
    step: int
    steps: int
    params: int
    tokens_per_step: int
    run: str
    compiles: bool = False  # the first step takes longer: kernels or C++ are compiled


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped:
    """The training loss, averaged over the steps since the last such report."""

    event: ClassVar[str] = "step"
    step: int  # done so far
    steps: int  # bound; 0 without one
    tokens: int  # trained on so far
    loss: float  # nats per token
    grad_norm: float  # global norm before clipping, at this step
    lr: float  # of AdamW
    tok_s: float  # tokens per second since the last report
    peak_memory: int  # bytes
    seconds: float  # of training so far
    seconds_left: float  # an estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """A validation over the whole split."""

    event: ClassVar[str] = "eval"
    step: int  # done so far
    tokens: int  # trained on so far
    evaluation: Evaluation
    best: bool  # whether this is the lowest loss so far
    seconds: float  # of training so far


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracked:
    """The matrices of every head; see `mlx_attn.probe.tracking`. Lists are `[layer][head]`."""

    event: ClassVar[str] = "track"
    step: int  # done so far
    scores: Mapping[str, list[list[float]]]  # effective rank, norm and symmetry of S_h
    value_outputs: Mapping[str, list[list[float]]]  # the same for V_h O_h
    drift: Mapping[str, list[list[float]]] | None  # None without a start to compare with


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The training is over."""

    event: ClassVar[str] = "end"
    variant: str  # name of the attention variant
    steps: int  # done
    tokens: int  # trained on
    evaluation: Evaluation | None  # the best, if any
    params: int  # trained numbers
    tok_s: float  # tokens per second, without validations and the first step
    peak_memory: int  # bytes
    seconds: float  # of training, validations included
    run: str  # the run directory
    reason: str  # "done", "time" or "interrupted"


Event = Started | Stepped | Evaluated | Tracked | Ended


def as_record(report: Event) -> dict[str, Any]:
    """Return an event as one flat JSON object."""
    record = {"event": report.event, **asdict(report)}
    if isinstance(report, Evaluated | Ended):
        del record["evaluation"]
        record |= evaluation_record(report.evaluation)
    if isinstance(report, Evaluated):
        del record["abilities"]  # reported once, for the best validation
    return record
