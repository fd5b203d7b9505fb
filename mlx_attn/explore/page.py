"""Write one HTML file with models and a script that runs them: no network, no other files.

A page shows one model, or two on one text, with the numbers of their heads. The home page has a
row and a loss curve for each run, and the models that fit into the file.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from mlx_attn.errors import ConfigError, RunError, plural
from mlx_attn.explore.manifest import PageModel, example_texts, page_model, training_words
from mlx_attn.files import check_page, write_text
from mlx_attn.probe import heads, show
from mlx_attn.run_directory import Run, open_run
from mlx_attn.runs import RUNS
from mlx_attn.sampling.documents import document_start
from mlx_attn.text.downloads import Progress
from mlx_attn.text.sources import describe
from mlx_attn.training.summaries import RunSummary, summarise_runs
from mlx_attn.ui.plots import COLOURS, template

MODULES = (
    *("tensor", "tokenizer", "graph", "attention", "model"),
    *("draw", "words", "steps", "reading", "heads", "pane", "differences"),
    *("home", "view"),
)
"""The modules of the page's script; each uses only earlier ones."""

_IMPORT = re.compile(r"^import .*?;\n", re.MULTILINE | re.DOTALL)


def render_page(models: Sequence[PageModel], texts: Sequence[str], at_heads: bool = False) -> str:
    """Return the page as text.

    Args:
        models: One model, or two to compare on one text.
        texts: Example texts; the page opens with the first one.
        at_heads: If True, the page opens at the heads' numbers.
    """
    names = [model.facts["name"] for model in models]
    one = f"What does {names[0]} attend to, and what does it need?"
    title = one if len(names) == 1 else f"Where do {' and '.join(names)} differ?"
    return _rendered(title, models, {"texts": [*texts], "at_heads": at_heads})


def render_home(rows: Sequence[Mapping[str, Any]], models: Sequence[PageModel]) -> str:
    """Return the home page of runs as text; see `home_of`."""
    return _rendered("Your runs", models, {"home": {"rows": rows, "colours": COLOURS}})


def _rendered(title: str, models: Sequence[PageModel], data: Mapping[str, Any]) -> str:
    style, script = template("page.css") + _web("explore.css"), page_script()
    policy = f"style-src '{_digest(style)}'; script-src '{_digest(script)}'"
    content = json.dumps(
        {"models": [model.facts for model in models], **data}, allow_nan=False, ensure_ascii=False
    )
    parts = {
        "title": html.escape(title),
        "policy": f"default-src 'none'; base-uri 'none'; form-action 'none'; {policy}",
        "style": style,
        "data": content.replace("<", "\\u003c"),  # so that it cannot close the element around it
        "weights": "\n".join(
            f'<script type="text/plain" id="weights-{i}">{model.weights}</script>'
            for i, model in enumerate(models)
        ),
        "script": script,
    }
    return re.sub(r"\{\{ (\w+) \}\}", lambda match: parts[match[1]], _web("explore.html"))


def write_home(
    path: Path | None = None,
    directory: Path = RUNS,
    dtype: str = "float16",
    progress: Progress | None = None,
    overwrite: bool = False,
) -> tuple[Path, int]:
    """Write the home page of the runs in a directory; return its path and its size in bytes.

    Args:
        path: The file to write; home.html in the directory by default.
        directory: The directory of the runs.
        dtype: See `page_model`.
        progress: Called with the bytes done and in all while a text is downloaded.
        overwrite: If True, replace a file that this program did not write.

    Raises:
        RunError: The page cannot be written.
    """
    path = path or directory / "home.html"
    check_page(path, overwrite)
    rows, models = home_of(summarise_runs(directory), dtype, progress=progress)
    write_text(path, render_home(rows, models))
    return path, path.stat().st_size


def write_page(
    runs: Sequence[Run],
    texts: Sequence[str] | None = None,
    path: Path | None = None,
    dtype: str = "float32",
    progress: Progress | None = None,
    overwrite: bool = False,
    windows: int | None = None,
) -> tuple[Path, int]:
    """Write the page of one run or two; return its path and its size in bytes.

    Args:
        runs: One run, or two to compare on one text.
        texts: Example texts; by default from the first run's validation text.
        path: The file to write; explore.html in the first run by default.
        dtype: See `page_model`.
        progress: Called with the bytes done and in all while a text is downloaded.
        overwrite: If True, replace a file that this program did not write.
        windows: If given, the page opens at the heads' numbers, measured on this many windows of
            validation text, or on the first text if 0.

    Raises:
        ConfigError: The page cannot compute a model; the message names the choice.
        RunError: A run cannot be read, or the page cannot be written.
    """
    path = path or runs[0].path / "explore.html"
    check_page(path, overwrite)
    count = windows if windows is not None else 0 if texts else WINDOWS
    texts = [*(texts or example_texts(runs[0], progress))]
    models = [
        page_model(run, dtype, training_words(run, progress), head_numbers(run, texts[0], count))
        for run in runs
    ]
    write_text(path, render_page(models, texts, at_heads=windows is not None))
    return path, path.stat().st_size


def page_script() -> str:
    """Join the modules into one script without imports and exports."""
    text = "\n".join(_web(f"{name}.js") for name in MODULES)
    return re.sub(r"^export ", "", _IMPORT.sub("", text), flags=re.MULTILINE)


def _web(name: str) -> str:
    return (files("mlx_attn.explore") / "web" / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


# The home page.

ROOM = 12_000_000
"""Most bytes of models in a home page; further runs need a command to open."""

POINTS = 100
"""Most points of a curve."""

_FACTS = 60_000  # approximate bytes of a model's text pieces, sources and formulas


def home_of(
    summaries: Sequence[RunSummary],
    dtype: str = "float16",
    room: int = ROOM,
    progress: Progress | None = None,
) -> tuple[list[dict[str, Any]], list[PageModel]]:
    """Return a row for each run, the latest first, and the models that a home page can run.

    In a row, `model` is an index into the models, or None.

    Args:
        summaries: The runs; the first ones go into the page.
        dtype: The type of the weights.
        room: Most bytes of models.
        progress: Called with the bytes done and in all while a text is downloaded.
    """
    rows, models = list[dict[str, Any]](), list[PageModel]()
    passages: dict[str, tuple[list[str] | None, list[str]]] = {}
    share = {"float32": 1.0, "float16": 0.5}[dtype]
    for summary in summaries:
        row = _row(summary)
        rows.append(row)
        if summary.problem:
            continue
        run = open_run(summary.path)
        text, size = run.settings["text"], run.settings["model"].get("vocab_size", 0)
        # Runs with the same content and tokens have comparable losses.
        group = f"{run.settings.get('digest', '')} {text.get('tokenizer', '')} {size}"
        row |= {"group": group, "vocabulary": size, "curve": [*_curve(run.metrics())]}
        row["best_at"] = run.best_validation().get("tokens")
        if _FACTS + share * run.weights.stat().st_size * 4 / 3 > room:
            row["closed"] = "the page has no room for it"
            continue
        try:
            if group not in passages:
                passages[group] = training_words(run, progress), example_texts(run, progress)
            words, texts = passages[group]
            model = page_model(run, dtype, words, head_numbers(run, texts[0], WINDOWS))
        except (ConfigError, RunError) as error:
            row["closed"] = str(error)
            continue
        room -= len(model.weights) + _FACTS
        row["model"] = len(models)
        models.append(PageModel({**model.facts, "texts": texts}, model.weights))
    return rows, models


def _row(summary: RunSummary) -> dict[str, Any]:
    keys = ("name", "variant", "seed", "parameters", "changed", "steps", "planned", "problem")
    return {
        **{key: getattr(summary, key) for key in keys},
        "text": describe(summary.text),
        "group": "",
        "loss": summary.val_loss,
        "bits": summary.bits_per_byte,
        "unfinished": summary.is_unfinished,
        "model": None,
        "closed": "",
        "curve": [],
    }


def _curve(reports: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, float]]:
    """Yield tokens read and the training loss, averaged so that at most `POINTS` remain."""
    steps = [r for r in reports if r.get("event") == "step" and r.get("tokens") and "loss" in r]
    for part in np.array_split(np.arange(len(steps)), min(POINTS, len(steps)) or 1):
        if len(part):
            loss = np.mean([steps[i]["loss"] for i in part])
            yield int(steps[part[-1]]["tokens"]), round(float(loss), 4)


# The numbers of the heads: a table, alignments, some sentences.

WINDOWS = 4
"""Number of windows of validation text to average over."""


def head_numbers(run: Run, text: str, windows: int) -> dict[str, Any] | None:
    """Return the numbers of a run's heads, measured on windows of its validation text.

    Without that text, or with `windows` 0, use `text`; return None if it has under two tokens.
    The result has grouped columns, and a row of cells per map, each shaded relative to its column.
    """
    try:
        tokens, source = _tokens_to_read(run, text, windows)
    except ConfigError:
        return None
    probe, (texts, T) = heads.probe(run.load_model(), tokens), tokens.shape
    matrices = {"S_h": probe.scores, "V_h O_h": probe.value_outputs}
    columns = show.columns(probe)
    values = [column.values(probe) for column in columns]
    sizes = [np.nan_to_num(np.abs(value)) for value in values]
    # The size that is shaded fully: that of the column, or its largest.
    full = [column.full or size.max() for column, size in zip(columns, sizes, strict=True)]
    shades = [np.minimum(s / max(most, 1e-12), 1) for s, most in zip(sizes, full, strict=True)]
    grouped = groupby(columns, key=lambda column: column.group)
    return {
        "measured": f"Measured while the model reads {source}, {T} tokens{' each' * (texts > 1)}.",
        "maps": show.how_many_maps(probe),
        "patterns": show.patterns(probe),
        "caveat": show.caveat(probe),
        "groups": [{"heading": heading, "span": len([*of])} for heading, of in grouped],
        "columns": [{"heading": of.heading, "meaning": of.meaning} for of in columns],
        "rows": [
            {
                "layer": layer,
                "head": head,
                "cells": [show.number(value[layer, head]) for value in values],
                "shades": [round(float(shade[layer, head]), 2) for shade in shades],
            }
            for layer, head in np.ndindex(probe.config.n_layers, probe.n_maps)
        ],
        "uniform": [column.uniform(probe) for column in columns],
        "alignment": {
            name: np.round(of.alignment, 3).tolist()
            for name, of in matrices.items()
            if of is not None and probe.config.n_heads > 1
        },
    }


def _tokens_to_read(run: Run, text: str, windows: int) -> tuple[np.ndarray, str]:
    """Return the tokens to measure on, and a phrase for their source."""
    if windows:
        with suppress(RunError):
            tokens = heads.validation_windows(run, windows)
            return tokens, f"{plural(len(tokens), 'window')} of validation text"
    context, start = run.config.context_length, document_start(run)
    return heads.prompt_tokens(text, run.load_tokenizer(), context, start), "the first text"
