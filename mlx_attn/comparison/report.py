"""The report of a comparison: one page, the answer first and the evidence below it."""

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from mlx_attn.comparison import show, tables
from mlx_attn.comparison.figures import curves_figure, forest_figure
from mlx_attn.comparison.result import Comparison
from mlx_attn.comparison.run import ComparisonRun
from mlx_attn.comparison.stages import ComparisonEvent
from mlx_attn.files import write_text
from mlx_attn.ui.plots import figure_for_page, render
from mlx_attn.ui.terminal import duration

REPORT = "report.html"


def conclude(
    run: ComparisonRun, directory: Path, on_event: Callable[[ComparisonEvent], Any]
) -> Comparison:
    """Train the missing trials, pass on every event, and write result and report to a directory."""
    event = None
    for event in run:
        on_event(event)
    assert isinstance(event, Comparison)
    # Strict JSON: a NaN or an infinity here is a mistake, and raises.
    content = json.dumps(asdict(event), indent=1, allow_nan=False)
    write_text(directory / "comparison.json", content + "\n")
    write_text(directory / REPORT, as_html(event))
    return event


def as_html(comparison: Comparison) -> str:
    """Return the report as one page that loads nothing and runs no script."""
    is_task = any(training.is_of_task for training in comparison.arms[0].trainings)
    forest, curves = (partial(draw, comparison) for draw in (forest_figure, curves_figure))
    return render(
        "report",
        comparison=comparison,
        question=show.question_of(comparison),
        answers=[show.answer_of(comparison, arm) for arm in comparison.judged],
        notes=show.notes_of(comparison),
        forest=figure_for_page(forest) if comparison.verdicts else "",
        differences=[
            tables.solved_of(comparison),
            tables.differences_of(comparison),
            tables.seeds_of(comparison),
        ],
        curves=figure_for_page(partial(curves, "accuracy" if is_task else "val_loss")),
        losses=[tables.losses_of(comparison), tables.costs_of(comparison)],
        evidence=[tables.tuning_of(comparison), *tables.settings_of(comparison)],
        trained=duration(comparison.seconds),
        visible=show.visible,
    )
