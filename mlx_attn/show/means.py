"""What several trainings report of one step, as one report: means, and the spread between seeds."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any

from mlx_attn.training.reports import Evaluated, Report, Stepped


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanStepped(Stepped):
    """The mean loss of several trainings; tokens and tokens per second are of all together.

    Attributes:
        spread: Standard deviation of the loss between them, in nats per token.
    """

    spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanEvaluated(Evaluated):
    """The mean of several validations.

    Attributes:
        spread: Standard deviation of the loss between them, in nats per token.
    """

    spread: float


def mean_stepped(reports: Sequence[Stepped]) -> MeanStepped:
    """One report of the same step of several trainings."""
    sums = {key: sum(getattr(r, key) for r in reports) for key in ("tokens", "tok_s")}
    means = {key: fmean(getattr(r, key) for r in reports) for key in ("loss", "grad_norm", "lr")}
    spread = deviation([r.loss for r in reports])
    return MeanStepped(**{**asdict(reports[-1]), **sums, **means, "spread": spread})


def mean_evaluated(reports: Sequence[Evaluated]) -> MeanEvaluated:
    """One report of the validations of the same step; the best so far if it is for every one."""
    means = {key: mean_of([getattr(r, key) for r in reports]) for key in _MEANS}
    facts = {"best": all(r.best for r in reports), "tokens": sum(r.tokens for r in reports)}
    spread = deviation([r.val_loss for r in reports])
    return MeanEvaluated(**{**asdict(reports[-1]), **means, **facts, "spread": spread})


def mean_of(numbers: Sequence[float | None]) -> Any:
    """The mean of those that are known; None where none is."""
    known = [number for number in numbers if number is not None]
    return fmean(known) if known else None


def deviation(numbers: Sequence[float]) -> float:
    """The standard deviation of a sample; 0 of one number."""
    return stdev(numbers) if len(numbers) > 1 else 0.0


def spread_text(report: Report, decimals: int) -> str:
    """The spread after a mean, such as " ± 0.012"; nothing after a number of one training."""
    if isinstance(report, MeanStepped | MeanEvaluated):
        return f" ± {report.spread:.{decimals}f}"
    return ""


_MEANS = ("val_loss", "bits_per_byte", "above_floor", "accuracy")
