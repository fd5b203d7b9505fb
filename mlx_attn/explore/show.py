"""The heads of a model in numbers as the page shows them: a table, alignments, some sentences."""

from contextlib import suppress
from itertools import groupby
from typing import Any

import numpy as np

from mlx_attn.errors import ConfigError, RunError, plural
from mlx_attn.probe import heads, show
from mlx_attn.probe.heads import Probe
from mlx_attn.run_directory import Run
from mlx_attn.sampling.documents import document_start

WINDOWS = 4
"""Windows of validation text that statistics are averaged over."""


def head_numbers(run: Run, text: str, windows: int) -> dict[str, Any] | None:
    """Return the numbers of a run's heads while it reads windows of its validation text.

    Without that, or with `windows` 0, it reads the text; None if that has fewer than two tokens.
    """
    try:
        tokens, what = _what_is_read(run, text, windows)
    except ConfigError:
        return None
    found, (texts, T) = heads.probe(run.load_model(), tokens), tokens.shape
    matrices = {"S_h": found.scores, "V_h O_h": found.value_outputs}
    return {
        "measured": f"Measured while the model reads {what}, {T} tokens{' each' * (texts > 1)}.",
        "maps": show.how_many_maps(found),
        "patterns": show.patterns(found),
        "caveat": show.caveat(found),
        **_table(found),
        "alignment": {
            name: np.round(of.alignment, 3).tolist()
            for name, of in matrices.items()
            if of is not None and found.config.n_heads > 1
        },
    }


def _what_is_read(run: Run, text: str, windows: int) -> tuple[np.ndarray, str]:
    """Return tokens with a description in words."""
    if windows:
        with suppress(RunError):
            tokens = heads.validation_windows(run, windows)
            return tokens, f"{plural(len(tokens), 'window')} of validation text"
    context, start = run.config.context_length, document_start(run)
    return heads.prompt_tokens(text, run.load_tokenizer(), context, start), "the first text"


def _table(found: Probe) -> dict[str, Any]:
    """Return columns in groups, and a row of cells per map, each shaded within its column."""
    shown = show.columns(found)
    values = [column.values(found) for column in shown]
    shades = [_shades(v, column.full) for v, column in zip(values, shown, strict=True)]
    grouped = groupby(shown, key=lambda column: column.group)
    return {
        "groups": [{"heading": heading, "span": len([*of])} for heading, of in grouped],
        "columns": [{"heading": of.heading, "meaning": of.meaning} for of in shown],
        "rows": [
            {
                "layer": layer,
                "head": head,
                "cells": [show.number(value[layer, head]) for value in values],
                "shades": [round(float(shade[layer, head]), 2) for shade in shades],
            }
            for layer, head in np.ndindex(found.config.n_layers, found.n_maps)
        ],
        "uniform": [column.uniform(found) for column in shown],
    }


def _shades(values: np.ndarray, full: float) -> np.ndarray:
    """Return 0 for nothing to 1 for `full`, or for the largest if that is 0."""
    sizes = np.nan_to_num(np.abs(values))
    return np.minimum(sizes / max(full or sizes.max(), 1e-12), 1)
