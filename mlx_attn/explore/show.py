"""Prepare the numbers of a model's heads for the page: a table, alignments, some sentences."""

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
"""Number of windows of validation text to average over."""


def head_numbers(run: Run, text: str, windows: int) -> dict[str, Any] | None:
    """Return the numbers of a run's heads, measured on windows of its validation text.

    Without that text, or with `windows` 0, use `text`; return None if it has under two tokens.
    """
    try:
        tokens, source = _tokens_to_read(run, text, windows)
    except ConfigError:
        return None
    probe, (texts, T) = heads.probe(run.load_model(), tokens), tokens.shape
    matrices = {"S_h": probe.scores, "V_h O_h": probe.value_outputs}
    return {
        "measured": f"Measured while the model reads {source}, {T} tokens{' each' * (texts > 1)}.",
        "maps": show.how_many_maps(probe),
        "patterns": show.patterns(probe),
        "caveat": show.caveat(probe),
        **_table(probe),
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


def _table(probe: Probe) -> dict[str, Any]:
    """Return grouped columns, and a row of cells per map, each shaded relative to its column."""
    shown = show.columns(probe)
    values = [column.values(probe) for column in shown]
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
            for layer, head in np.ndindex(probe.config.n_layers, probe.n_maps)
        ],
        "uniform": [column.uniform(probe) for column in shown],
    }


def _shades(values: np.ndarray, full: float) -> np.ndarray:
    """Scale sizes to 0...1, with 1 for `full`, or for the largest if `full` is 0."""
    sizes = np.nan_to_num(np.abs(values))
    return np.minimum(sizes / max(full or sizes.max(), 1e-12), 1)
