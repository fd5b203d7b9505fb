"""The tables of a comparison: rows of text, for a terminal and for the report alike."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import fmean, stdev
from typing import Any

from mlx_attn.comparison.result import MOST_SEEDS, SOLVED, ArmResult, Comparison, Verdict
from mlx_attn.errors import plural

MISSING = "-"  # printed in place of a missing number
UNIT = "nats per token"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text, the first cell naming the row; `wordy` cells may wrap, numbers may not."""

    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    wordy: bool = False


def differences_of(comparison: Comparison) -> Table:
    """Return the verdicts with their numbers."""
    decimals = places(comparison.delta)
    rows = [
        {
            "arm": arm,
            "difference": signed(verdict.mean, decimals),
            interval_name(comparison.confidence): between(verdict.interval, decimals),
            "word": "reference" if arm == comparison.reference else verdict.word,
            "p": probability(verdict.p_holm),
            "of worth": percent(verdict.share),
            "seeds needed": seeds_needed(verdict),
        }
        for arm, verdict in comparison.verdicts.items()
    ]
    caption = f"Loss minus that of {comparison.control}, {UNIT}; p is corrected for all arms"
    return _table(caption, rows)


def seeds_of(comparison: Comparison) -> Table:
    """Return the differences of every seed, arm by arm."""
    decimals = places(comparison.delta)
    columns = [
        [signed(difference, decimals) for difference in verdict.differences]
        for verdict in comparison.verdicts.values()
    ]
    cells = zip_longest(*columns, fillvalue=MISSING)
    rows = [(f"{seed}", *row) for seed, row in enumerate(cells)]
    return Table("The same seed by seed", ("seed", *comparison.verdicts), rows)


def losses_of(comparison: Comparison) -> Table:
    """Return the losses, and their spread between seeds."""
    decimals = max(4, places(comparison.delta))
    rows = [
        {
            "arm": arm.arm,
            "loss": number(mean_of(arm, "val_loss"), decimals),
            "between seeds": number(_spread(arm), decimals),
            "bits per byte": number(mean_of(arm, "bits_per_byte"), decimals),
            "above floor": number(mean_of(arm, "above_floor"), decimals),
            "accuracy": percent(mean_of(arm, "accuracy")),
        }
        for arm in comparison.arms
    ]
    return _table(f"Mean loss, {UNIT}, and its standard deviation between seeds", rows)


def costs_of(comparison: Comparison) -> Table:
    """Return the costs of the arms."""
    rows = [
        {
            "arm": arm.arm,
            "parameters": f"{arm.params:,}",
            "ms a step": number(1000 * (mean_of(arm, "step_seconds") or 0.0), 1),
            "seconds": number(mean_of(arm, "seconds"), 1),
            "cache bytes": f"{arm.cache_bytes_per_token:,}",
            "rates": f"x {arm.lr_scale:g}",
        }
        for arm in comparison.arms
    ]
    return _table("Parameters, times on this machine, cache for each token, learning rates", rows)


def solved_of(comparison: Comparison) -> Table:
    """Return how often a task was solved; without rows for a text."""
    rows = [
        {
            "arm": arm,
            "solved": f"{one.solved} of {one.runs}",
            "median steps": number(one.median_steps, 0),
            "word": one.word or MISSING,
            "p": probability(one.p_holm),
        }
        for arm, one in comparison.solving.items()
    ]
    return _table(f"Seeds that predicted {SOLVED:.0%} of the tokens right; Fisher's test", rows)


def tuning_of(comparison: Comparison) -> Table:
    """Return the search for every arm's learning rate: a row per arm, a column per factor."""
    tunings, rows = comparison.tunings, list[dict[str, str]]()
    factors = sorted({factor for tuning in tunings for factor in tuning.losses})
    for tuning in tunings:
        shown = {f: "diverged" if x is None else f"{x:.4f}" for f, x in tuning.losses.items()}
        cells = {f"x {factor:g}": shown.get(factor, MISSING) for factor in factors}
        rows.append({"arm": tuning.arm, **cells, "chosen": f"x {tuning.best:g}"})
    seeds = plural(len(tunings[0].seeds), "other seed") if tunings else ""
    return _table(f"Mean loss of {seeds} by factor of the learning rates", rows)


def settings_of(comparison: Comparison) -> list[Table]:
    """Return the settings, the text and the machine."""
    shared = comparison.settings.keys()
    apart = {
        arm: {key: settings[key] for key in settings if key not in shared}
        for arm, settings in comparison.settings_by_arm.items()
    }
    return [
        _pairs("What sets the arms apart", apart),
        _pairs("What all arms share", comparison.settings),
        _pairs("The validation text", comparison.text),
        _pairs("Versions and machine", comparison.versions),
    ]


def _table(caption: str, rows: Sequence[Mapping[str, str]]) -> Table:
    """Return a table of rows by heading, without columns that are empty in every row."""
    headings = rows[0] if rows else ()
    filled = [name for name in headings if any(row[name] != MISSING for row in rows)]
    return Table(caption, filled, [[row[name] for name in filled] for row in rows])


def _pairs(caption: str, values: Mapping[str, Any]) -> Table:
    rows = [(key, _value_text(entry)) for key, entry in values.items()]
    return Table(caption, ("name", "value"), rows, wordy=True)


def _value_text(value: Any) -> str:
    """Return a setting, or several on one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} = {_value_text(one)}" for key, one in value.items()) or "none"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def mean_of(arm: ArmResult, field: str) -> float | None:
    """Return a field's mean over the trainings that have it, or None."""
    values = [getattr(training, field) for training in arm.trainings]
    measured = [value for value in values if value is not None]
    return fmean(measured) if measured else None


def _spread(arm: ArmResult) -> float | None:
    losses = [training.val_loss for training in arm.trainings]
    return stdev(losses) if len(losses) > 1 else None


# Numbers as text.


def places(delta: float) -> int:
    """Return the decimals that show a tenth of delta, three to nine: a loss has no more."""
    return min(max(3, 1 - math.floor(math.log10(delta))), 9) if 0 < delta < 1 else 3


def number(value: float | None, decimals: int) -> str:
    """Return a number with these decimals, never -0; a dash for None."""
    # -0.0 + 0.0 is 0.0
    return MISSING if value is None else f"{round(value, decimals) + 0.0:,.{decimals}f}"


def signed(value: float, decimals: int) -> str:
    """Return a number with its sign, + for 0."""
    return f"{round(value, decimals) + 0.0:+,.{decimals}f}"


def between(interval: tuple[float, float] | None, decimals: int) -> str:
    """Return an interval from one end to the other, or a dash without one.

    An end that would be rounded to zero gets up to three more decimals, because its sign matters.
    """
    if not interval:
        return MISSING
    wider = range(decimals, decimals + 4)
    return " to ".join(
        signed(end, next((n for n in wider if round(end, n)), decimals)) for end in interval
    )


def interval_name(confidence: float) -> str:
    """Name an interval, as in "95 % interval"; no confidence is rounded to 100 %."""
    return f"{100 * confidence:.12g} % interval"


def probability(p: float | None) -> str:
    """Return a p-value in three decimals."""
    return MISSING if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def percent(share: float | None) -> str:
    """Return a share of 1, as 97.3 %."""
    return MISSING if share is None else f"{100 * share:.1f} %"


def seeds_needed(verdict: Verdict) -> str:
    """Return the seeds that would decide; a dash if decided."""
    if verdict.seeds_needed is None:
        return MISSING
    return f"{verdict.seeds_needed}{'+' if verdict.seeds_needed >= MOST_SEEDS else ''}"
