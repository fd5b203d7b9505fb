"""Write one HTML file with models and a script that runs them: no network, no other files.

A page shows one model, or two on one text, with the numbers of their heads. The home page has a
row and a loss curve for each run, and the models that fit into the file.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from mlx_attn.errors import ConfigError, RunError, plural
from mlx_attn.explore.manifest import example_texts, page_model, text_of, training_words
from mlx_attn.files import check_page, digest, write_text
from mlx_attn.probe import heads, show
from mlx_attn.run_directory import Run, best_of, open_run
from mlx_attn.runs import RUNS, LoadedRun, RunSummary, load_run, summarise_runs
from mlx_attn.text.corpus import Corpus
from mlx_attn.text.sources import describe
from mlx_attn.ui.plots import COLOURS, template

MODULES = """
tensor tokenizer graph attention model
draw words steps reading heads pane differences home view
"""
"""The modules of the page's script; each uses only earlier ones."""

_IMPORT = re.compile(r"^import .*?;\n", re.MULTILINE | re.DOTALL)

Model = Mapping[str, Any]
"""A model as `page_model` returns it."""


def render_page(models: Sequence[Model], texts: Sequence[str], verdict: str = "") -> str:
    """Return the page of one model or two, which opens with the verdict and the first text."""
    names = " and ".join(model["name"] for model in models)
    title = f"Where do {names} differ?"
    if len(models) == 1:
        title = f"What does {names} attend to, and what does it need?"
    return _rendered(title, models, {"texts": [*texts], "verdict": verdict})


def render_home(rows: Sequence[Mapping[str, Any]], models: Sequence[Model]) -> str:
    """Return the home page of runs; see `home_of`."""
    return _rendered("Your runs", models, {"home": {"rows": rows, "colours": COLOURS}})


def _rendered(title: str, models: Sequence[Model], data: Mapping[str, Any]) -> str:
    style, script = template("page.css") + _web("explore.css"), page_script()
    policy = f"style-src '{_digest(style)}'; script-src '{_digest(script)}'"
    facts = [{key: fact for key, fact in model.items() if key != "weights"} for model in models]
    content = json.dumps({"models": facts, **data}, allow_nan=False, ensure_ascii=False)
    content = content.encode(errors="replace").decode()  # a folder's name need not be UTF-8
    parts = {
        "title": html.escape(title),
        "policy": f"default-src 'none'; base-uri 'none'; form-action 'none'; {policy}",
        "style": style,
        "data": content.replace("<", "\\u003c"),  # so that it cannot close the element around it
        "weights": "\n".join(
            f'<script type="text/plain" id="weights-{i}">{model["weights"]}</script>'
            for i, model in enumerate(models)
        ),
        "script": script,
    }
    return re.sub(r"\{\{ (\w+) \}\}", lambda match: parts[match[1]], _web("explore.html"))


def write_home(path: Path | None, dtype: str, overwrite: bool) -> Path:
    """Write the home page of all runs, by default as runs/home.html; return its path.

    See `write_page` for the arguments.
    """
    path = path or RUNS / "home.html"
    check_page(path, overwrite)
    write_text(path, render_home(*home_of(summarise_runs(), dtype)))
    return path


def write_page(
    runs: Sequence[LoadedRun],
    texts: Sequence[str] | None = None,
    path: Path | None = None,
    dtype: str = "float32",
    overwrite: bool = False,
    verdict: str = "",
) -> Path:
    """Write the page of one run or two; return its path.

    Args:
        runs: One run, or two to compare on one text.
        texts: Example texts; by default from the first run's validation text.
        path: The file to write; explore.html in the first run by default.
        dtype: The type of the weights: float32, or float16 in half the space.
        overwrite: If True, replace a file that this program did not write.
        verdict: What many seeds have shown about two runs.

    Raises:
        ConfigError: The page cannot compute a model; the message names the choice.
        RunError: A run cannot be read, or the page cannot be written.
    """
    path = path or runs[0].run.path / "explore.html"
    check_page(path, overwrite)
    corpora = [text_of(each.run) for each in runs]
    shown = [*(texts or example_texts(runs[0], corpora[0]))]
    models = [
        page_model(each, dtype, training_words(each.run, corpus))
        for each, corpus in zip(runs, corpora, strict=True)
    ]
    for model, each, corpus in zip(models, runs, corpora, strict=True):
        model["heads"] = head_numbers(each, shown[0], None if texts else corpus)
    write_text(path, render_page(models, shown, verdict))
    return path


def page_script() -> str:
    """Join the modules into one script without imports and exports."""
    text = "\n".join(_web(f"{name}.js") for name in MODULES.split())
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
    summaries: Sequence[RunSummary], dtype: str = "float16"
) -> tuple[list[dict[str, Any]], list[Model]]:
    """Return a row for each run, and the models of the first runs that fit into `ROOM` bytes.

    In a row, `model` is an index into the models, or None.
    """
    rows = [
        asdict(each) | {"path": None, "text": describe(each.text), "model": None}
        for each in summaries
    ]
    models, room = list[Model](), ROOM
    # Of each text: the words in it and examples; runs of a text share them.
    passages: dict[str, tuple[list[str] | None, list[str]]] = {}
    share = {"float32": 1.0, "float16": 0.5}[dtype]
    for summary, row in zip(summaries, rows, strict=True):
        if summary.problem:
            continue
        run = open_run(summary.path)
        row |= _history(run)
        try:
            if _FACTS + share * run.weights.stat().st_size * 4 / 3 > room:
                raise ConfigError("the page has no room for it")
            loaded, corpus = load_run(str(run.path)), text_of(run)
            if row["group"] not in passages:
                passages[row["group"]] = training_words(run, corpus), example_texts(loaded, corpus)
            words, texts = passages[row["group"]]
            model = page_model(loaded, dtype, words)
            model["heads"] = head_numbers(loaded, texts[0], corpus)
        except (ConfigError, RunError) as error:
            row["closed"] = str(error)
            continue
        room -= len(json.dumps(model))
        row["model"] = len(models)
        models.append({**model, "texts": texts})
    return rows, models


def _history(run: Run) -> dict[str, Any]:
    """Return the further facts in the row of a run that can be read."""
    reports, tokenizer = run.metrics(), sorted(run.path.glob("tokenizer.*"))
    content = str(run.settings.get("digest") or run.settings["text"].get("data", ""))
    steps = [r for r in reports if r.get("event") == "step" and r.get("tokens") and "loss" in r]
    # Tokens read and the training loss, averaged so that at most `POINTS` remain.
    points = np.array([(step["tokens"], step["loss"]) for step in steps]).reshape(-1, 2)
    parts = np.array_split(points, min(POINTS, len(steps)) or 1)
    return {
        # Runs with the same content and tokens have comparable losses.
        "group": content + digest(b"".join(file.read_bytes() for file in tokenizer)),
        "content": content,
        "vocabulary": run.settings["model"].get("vocab_size", 0),
        "curve": [(int(p[-1, 0]), round(float(p[:, 1].mean()), 4)) for p in parts if len(p)],
        "best_at": best_of(reports).get("tokens"),
    }


# The numbers of the heads: a table, alignments, some sentences.

WINDOWS = 4
"""Number of windows of validation text to average over."""


def head_numbers(loaded: LoadedRun, text: str, corpus: Corpus | None) -> dict[str, Any] | None:
    """Return the numbers of a run's heads, measured on windows of a validation text.

    Without a corpus, use `text`; return None if it has under two tokens.
    """
    try:
        if corpus:
            context = loaded.model.config.context_length
            tokens = heads.validation_windows(corpus, context, WINDOWS)
            source = f"{plural(len(tokens), 'window')} of validation text"
        else:
            tokens, source = heads.prompt_tokens(loaded, text), "the first text"
    except ConfigError:
        return None
    texts, T = tokens.shape
    each = " each" if texts > 1 else ""
    measured = f"Measured while the model reads {source}, {T} tokens{each}."
    return {"measured": measured, **_numbers(heads.probe(loaded.model, tokens))}


def _numbers(probe: heads.Probe) -> dict[str, Any]:
    columns = show.columns(probe)
    groups = groupby(columns, key=lambda column: show.GROUPS[column.of])
    return {
        "patterns": f"{show.how_many_maps(probe)} {show.patterns(probe)}",
        "caveat": show.caveat(probe),
        "groups": [{"heading": heading, "span": len([*group])} for heading, group in groups],
        "heads": [*np.ndindex(probe.config.n_layers, probe.n_maps)],
        "columns": [_column(column, probe) for column in columns],
        "alignment": {
            show.MATRICES[of]: np.round(spectra["alignment"], 3).tolist()
            for of, spectra in probe.spectra.items()
            if probe.config.n_heads > 1
        },
    }


def _column(column: show.Column, probe: heads.Probe) -> dict[str, Any]:
    """Return a number of every head, with its size relative to the one that is shaded fully."""
    values = column.values(probe).ravel()
    sizes = np.nan_to_num(np.abs(values))
    shades = np.minimum(sizes / max(column.full or sizes.max(), 1e-12), 1)
    return {
        "heading": column.key.replace("_", " "),
        "meaning": column.meaning,
        "cells": [*map(show.number, values)],
        "shades": np.round(shades, 2).tolist(),
        "uniform": column.uniform(probe),
    }
