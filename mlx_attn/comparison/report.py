"""The report of a comparison: one page, the answer first and the evidence below it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import stdev
from typing import Any

from mlx_attn.comparison import show
from mlx_attn.comparison.figures import curves_figure, forest_figure
from mlx_attn.comparison.result import SOLVED, Comparison
from mlx_attn.errors import plural
from mlx_attn.files import write_text
from mlx_attn.ui.plots import figure_for_page, render
from mlx_attn.ui.terminal import duration

REPORT = "report.html"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text, the first cell naming the row; `wordy` cells may wrap, numbers may not."""

    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    wordy: bool = False


def write_report(comparison: Comparison, directory: Path) -> Path:
    """Write the report into a directory; return its path."""
    path = directory / REPORT
    write_text(path, as_html(comparison))
    return path


def as_html(comparison: Comparison) -> str:
    """Return the report as one page that loads nothing and runs no script."""
    is_task = any(training.is_of_task for training in comparison.arms[0].trainings)
    return render(
        "report",
        comparison=comparison,
        question=show.question_of(comparison),
        answers=[show.answer_of(comparison, arm) for arm in comparison.judged],
        notes=show.notes_of(comparison),
        forest=figure_for_page(lambda: forest_figure(comparison)) if comparison.verdicts else "",
        differences=[_differences(comparison), _seeds(comparison)],
        curves=figure_for_page(
            lambda: curves_figure(comparison, "accuracy" if is_task else "val_loss")
        ),
        losses=[*_solved(comparison), _losses(comparison)],
        evidence=[*_tuning(comparison), *_settings(comparison)],
        trained=duration(comparison.seconds),
        visible=show.visible,
    )


def _differences(comparison: Comparison) -> Table:
    decimals = show.places(comparison.delta)
    rows = [
        {
            "arm": arm,
            "difference": show.signed(verdict.mean, decimals),
            show.interval_name(comparison.confidence): show.between(verdict.interval, decimals),
            "word": verdict.word,
            "margin": show.number(verdict.margin, decimals + 1),
            "p, corrected": show.probability(verdict.p_holm),
            "degrees of freedom": f"{verdict.degrees}, {verdict.lent} lent",
            "tuning error": show.number(verdict.tuning_error or None, decimals + 1),
            "share of worth": show.percent(verdict.share),
            "seeds needed": show.seeds_needed(verdict),
        }
        for arm, verdict in comparison.verdicts.items()
    ]
    control = comparison.control
    return _table(f"Loss minus that of {control}, in {show.UNIT}, paired by seed", rows)


def _seeds(comparison: Comparison) -> Table:
    decimals = show.places(comparison.delta)
    rows = [
        {
            "arm": arm,
            **{
                f"seed {seed}": show.signed(difference, decimals)
                for seed, difference in enumerate(verdict.differences)
            },
        }
        for arm, verdict in comparison.verdicts.items()
    ]
    return _table("The same seed by seed", rows)


def _losses(comparison: Comparison) -> Table:
    decimals, rows = max(4, show.places(comparison.delta) + 1), list[dict[str, str]]()
    for arm in comparison.arms:
        losses = [training.val_loss for training in arm.trainings]
        parameters, step, seconds, cache = show.costs_of(arm)
        row = {
            "arm": arm.arm,
            "loss": show.number(show.mean_of(arm, "val_loss"), decimals),
            "between seeds": show.number(stdev(losses) if len(losses) > 1 else None, decimals),
            "bits per byte": show.number(show.mean_of(arm, "bits_per_byte"), decimals),
            "above floor": show.number(show.mean_of(arm, "above_floor"), decimals),
            "accuracy": show.percent(show.mean_of(arm, "accuracy")),
            "parameters": parameters,
            "ms per step": step,
            "seconds": seconds,
            "cache bytes per token": cache,
            "learning rate": f"x {arm.lr_scale:g}",
        }
        rows.append(row)
    caption = f"Mean loss in {show.UNIT}, its standard deviation between seeds, and the costs"
    return _table(caption, rows)


def _solved(comparison: Comparison) -> list[Table]:
    """Return how often a task was solved; nothing for a text."""
    rows = [
        {
            "arm": arm,
            "solved": f"{one.solved} of {one.runs}",
            "median steps": show.number(one.median_steps, 0),
            "p, corrected": show.probability(one.p_holm),
            "word": one.word or show.MISSING,
        }
        for arm, one in comparison.solving.items()
    ]
    caption = f"Seeds that predicted {SOLVED:.0%} of the tokens right; Fisher's exact test"
    return [_table(caption, rows)] if rows else []


def _tuning(comparison: Comparison) -> list[Table]:
    """Tabulate the search for every arm's learning rate: a row per arm, a column per factor."""
    if not (tunings := comparison.tunings):
        return []
    factors, rows = sorted({f for t in tunings for f in t.losses}), list[dict[str, str]]()
    for tuning in tunings:
        shown = {f: "diverged" if x is None else f"{x:.4f}" for f, x in tuning.losses.items()}
        cells = {f"x {factor:g}": shown.get(factor, "not tried") for factor in factors}
        rows.append({"arm": tuning.arm, **cells, "chosen": f"x {tuning.best:g}"})
    seeds = plural(len(tunings[0].seeds), "other seed")
    return [_table(f"Mean loss of {seeds} by factor of the learning rates", rows)]


def _settings(comparison: Comparison) -> list[Table]:
    own = {arm.arm: arm.settings for arm in comparison.arms}
    return [
        _pairs("What sets the arms apart", own),
        _pairs("What all arms share", comparison.settings),
        _pairs("The validation text", comparison.text),
        _pairs("Versions and machine", comparison.versions),
    ]


def _table(caption: str, rows: Sequence[Mapping[str, str]]) -> Table:
    """Return a table of rows by heading, without columns that are empty in every row."""
    headings = rows[0] if rows else ()
    filled = [name for name in headings if any(row[name] != show.MISSING for row in rows)]
    return Table(caption, filled, [[row[name] for name in filled] for row in rows])


def _pairs(caption: str, values: Mapping[str, Any]) -> Table:
    rows = [(key, _value_text(entry)) for key, entry in values.items()]
    return Table(caption, ("name", "value"), rows, wordy=True)


def _value_text(value: Any) -> str:
    """Return a setting, or several on one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} = {_value_text(one)}" for key, one in value.items()) or "none"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
