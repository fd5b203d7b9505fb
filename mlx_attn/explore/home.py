"""The home page of all runs: a row for each, loss curves, and the models that fit into the file."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlx_attn.errors import ConfigError, RunError
from mlx_attn.explore.manifest import PageModel, page_model
from mlx_attn.explore.passages import example_texts, training_words
from mlx_attn.run_directory import Run, open_run
from mlx_attn.text.downloads import Progress
from mlx_attn.text.sources import describe
from mlx_attn.training.summaries import RunSummary

ROOM = 12_000_000
"""Most bytes of models in a home page; further runs need a command to open."""

POINTS = 100
"""Most points of a curve."""

HeadNumbers = Callable[[Run, str], dict[str, Any] | None]

_FACTS = 60_000  # approximate bytes of a model's text pieces, sources and formulas


@dataclass(slots=True)
class Home:
    """The content of a home page.

    Attributes:
        rows: A row for each run, the latest first; `model` is an index into `models`.
        models: The models that the page can run.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    models: list[PageModel] = field(default_factory=list)


def home_of(
    summaries: Sequence[RunSummary],
    dtype: str = "float16",
    room: int = ROOM,
    progress: Progress | None = None,
    numbers: HeadNumbers | None = None,
) -> Home:
    """Return the rows and models of a home page.

    Args:
        summaries: The runs; the first ones go into the page.
        dtype: The type of the weights.
        room: Most bytes of models.
        progress: Called with the bytes done and in all while a text is downloaded.
        numbers: Measures the heads of a run on its validation text, or else on the given one.
    """
    home, passages = Home(), _Passages(progress)
    for summary in summaries:
        row = _row(summary)
        home.rows.append(row)
        if summary.problem:
            continue
        run = open_run(summary.path)
        row |= _text_of(run) | {"curve": [*_curve(run.metrics())]}
        row["best_at"] = run.best_validation().get("tokens")
        share = {"float32": 1.0, "float16": 0.5}[dtype]
        if _FACTS + share * run.weights.stat().st_size * 4 / 3 > room:
            row["closed"] = "the page has no room for it"
            continue
        try:
            words, texts = passages.of(run, row["group"])
            model = page_model(run, dtype, words, numbers and numbers(run, texts[0]))
        except (ConfigError, RunError) as error:
            row["closed"] = str(error)
            continue
        room -= len(model.weights) + _FACTS
        row["model"] = len(home.models)
        home.models.append(PageModel({**model.facts, "texts": texts}, model.weights))
    return home


class _Passages:
    """Words and examples of each text, computed once."""

    def __init__(self, progress: Progress | None):
        self._progress = progress
        self._by_group: dict[str, tuple[list[str] | None, list[str]]] = {}

    def of(self, run: Run, group: str) -> tuple[list[str] | None, list[str]]:
        if group not in self._by_group:
            words = training_words(run, self._progress)
            self._by_group[group] = words, example_texts(run, self._progress)
        return self._by_group[group]


def _row(summary: RunSummary) -> dict[str, Any]:
    return {
        "name": summary.name,
        "variant": summary.variant,
        "text": describe(summary.text),
        "group": "",
        "seed": summary.seed,
        "parameters": summary.parameters,
        "loss": summary.val_loss,
        "bits": summary.bits_per_byte,
        "changed": summary.changed,
        "steps": summary.steps,
        "planned": summary.planned,
        "unfinished": summary.is_unfinished,
        "problem": summary.problem,
        "model": None,
        "closed": "",
        "curve": [],
    }


def _text_of(run: Run) -> dict[str, Any]:
    """Return the group of runs with the same content and tokens, so comparable losses."""
    text, size = run.settings["text"], run.settings["model"].get("vocab_size", 0)
    kind = text.get("tokenizer", "")
    return {"group": f"{run.settings.get('digest', '')} {kind} {size}", "vocabulary": size}


def _curve(reports: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, float]]:
    """Yield tokens read and the training loss, averaged so that at most `POINTS` remain."""
    steps = [r for r in reports if r.get("event") == "step" and r.get("tokens") and "loss" in r]
    for part in np.array_split(np.arange(len(steps)), min(POINTS, len(steps)) or 1):
        if len(part):
            loss = np.mean([steps[i]["loss"] for i in part])
            yield int(steps[part[-1]]["tokens"]), round(float(loss), 4)
