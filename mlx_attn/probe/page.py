"""One HTML file that shows every head at work: no network, no other files, safe for any text."""

import base64
import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np

from mlx_attn.attention.config import VARIANTS
from mlx_attn.errors import plural
from mlx_attn.probe import show
from mlx_attn.probe.heads import Probe
from mlx_attn.run_directory import Run
from mlx_attn.text.tokenizers import Tokenizer
from mlx_attn.training.config import variant_name
from mlx_attn.ui.plots import figure_for_page, markup, render, template

MAP_BYTES = 4_000_000
"""Room for maps in a page; texts that do not fit are left out, all but the first."""

FULL = 160
"""The byte of weight 1: fine enough for a percent, and 12 layers of 12 heads fit into 5 MB."""

_SPECTRA = (
    "A steep fall means few directions, a flat line many. One panel per layer, one line per head; "
    "the effective rank of each is in the table."
)
_ALIGNMENT = (
    "1 where two heads have the same matrix up to a factor, 0 where their matrices have nothing in "
    "common."
)
_VISIBLE = {"\n": "⏎", "\t": "⇥", "\r": "␍"}


def page_facts(run: Run, found: Probe, prompted: bool) -> dict[str, str]:
    """The page's text on a run: its name, a line of facts, and what was averaged over."""
    variant = variant_name(run.settings["model"])
    formula = f": {VARIANTS[variant].formula}" if variant in VARIANTS else ""
    texts, T = found.tokens.shape
    read = "a prompt" if prompted else f"{plural(texts, 'window')} of validation text"
    length = f" of {T} tokens" + (" each" if texts > 1 else "")
    average = f"Measured while the model reads {read}{length}."
    return {"name": run.title, "facts": f"{variant}{formula}", "averaged_over": average}


def render_page(found: Probe, tokenizer: Tokenizer, facts: Mapping[str, str]) -> str:
    """The page as text; `facts` from `page_facts`."""
    script = template("probe.js")
    digest = hashlib.sha256(script.encode()).digest()
    data = _data(found, tokenizer)
    return render(
        "probe",
        **facts,
        question=f"What do the heads of {facts['name']} attend to?",
        answer=_answer(found),
        why_multi_headed=show.why_multi_headed(found),
        caveat=show.caveat(found),
        script=markup(script),
        # The page's policy lets this script run and no other.
        script_hash=f"sha256-{base64.b64encode(digest).decode()}",
        figures=_figures(found),
        texts=len(data["texts"]),
        data=data,
        **_table(found),
    )


_UNLIKE = 1.5  # times the number of a head that attends to all tokens alike
_PATTERNS = {
    "previous": "attends to the previous token most",
    "first": "rests on the first token most",
    "induction": "attends most to what followed last time",
}


def _answer(found: Probe) -> str:
    """The heads with a pattern, a sentence each."""
    said = [_pattern(found, key, words) for key, words in _PATTERNS.items()]
    nothing = "No head keeps to the previous token, to the first, or to what followed last time."
    return " ".join(filter(None, said)) or nothing


def _pattern(found: Probe, key: str, words: str) -> str:
    """The sentence about the head that does it most; empty where none does it to speak of."""
    shares, alike = np.nan_to_num(getattr(found.statistics, key)), found.uniform[key]
    layer, head = np.unravel_index(shares.argmax(), shares.shape)
    share = shares[layer, head]
    if share < max(_UNLIKE * alike, 0.01):
        return ""
    most, usual = (f"{100 * value:.0f} %" for value in (share, alike))
    return f"Layer {layer}, head {head} {words}: {most}, where attending to all alike is {usual}."


def label(piece: bytes) -> str:
    """A token made visible: line ends as arrows, bytes that are not text as their codes."""
    text = piece.decode("utf-8", "backslashreplace")
    return "".join(_VISIBLE.get(c, c if c.isprintable() else ascii(c)[1:-1]) for c in text)


def pack_maps(maps: np.ndarray) -> str:
    """Maps [L, H, T, T] of one text as base64, in about a byte for each pair of tokens or less.

    Only the lower triangles, each weight w as the byte `FULL` sqrt(w), so that small weights keep
    two digits; compressed with zlib. If a row adds up to 1, the mean square of its n bytes is
    FULL^2 / n, so most of them are small.
    """
    T = maps.shape[-1]
    levels = np.rint(FULL * np.sqrt(np.clip(maps, 0, 1))).astype(np.uint8)
    rows, columns = np.tril_indices(T)
    return base64.b64encode(zlib.compress(levels[..., rows, columns].tobytes(), 9)).decode()


def _data(found: Probe, tokenizer: Tokenizer) -> dict[str, Any]:
    """What the script reads."""
    texts, room = [], MAP_BYTES
    for text, tokens in enumerate(found.tokens):
        maps = pack_maps(found.maps[:, text])
        room -= len(maps)
        if texts and room < 0:
            break
        labels = [label(tokenizer.token_bytes(token)) for token in tokens]
        texts.append({"tokens": labels, "maps": maps})
    L, H = found.config.n_layers, found.n_maps
    summaries = [[_summary(found, layer, head) for head in range(H)] for layer in range(L)]
    return {"full": FULL, "layers": L, "heads": H, "summaries": summaries, "texts": texts}


def _summary(found: Probe, layer: int, head: int) -> str:
    """A text alternative to a map."""
    of = {key: show.number(array[layer, head]) for key, array in asdict(found.statistics).items()}
    return (
        f"Entropy {of['entropy']} nats, {of['distance']} tokens back on average, previous token "
        f"{of['previous']}, first token {of['first']}, induction {of['induction']}."
    )


def _table(found: Probe) -> dict[str, Any]:
    """The columns in groups, and a row of cells per head, each shaded within its column."""
    shown = show.columns(found)
    grouped = groupby(shown, key=lambda column: column.group)
    values = [column.values(found) for column in shown]
    shades = [_shades(v, column.full) for v, column in zip(values, shown, strict=True)]
    rows = [
        {
            "layer": layer,
            "head": head,
            "cells": [
                {"text": show.number(value[layer, head]), "shade": f"{shade[layer, head]:.2f}"}
                for value, shade in zip(values, shades, strict=True)
            ],
        }
        for layer, head in np.ndindex(found.config.n_layers, found.n_maps)
    ]
    return {
        "groups": [{"heading": heading, "columns": [*columns]} for heading, columns in grouped],
        "rows": rows,
        "uniform": [column.uniform(found) for column in shown],
        "meanings": list({column.heading: column.meaning for column in shown}.items()),
    }


def _shades(values: np.ndarray, full: float) -> np.ndarray:
    """From 0 for nothing to 1 for `full`, or for the largest where that is 0."""
    sizes = np.nan_to_num(np.abs(values))
    return np.minimum(sizes / max(full or sizes.max(), 1e-12), 1)


def _figures(found: Probe) -> list[dict[str, Any]]:
    matrices = {"S_h": found.scores, "V_h O_h": found.value_outputs}
    kinds = [("Singular values", _SPECTRA, show.draw_singular_values)]
    if found.config.n_heads > 1:
        kinds.append(("Alignment between heads", _ALIGNMENT, show.draw_alignment))
    return [
        {"heading": f"{title} of {name}", "text": text, "svg": figure_for_page(partial(draw, of))}
        for title, text, draw in kinds
        for name, of in matrices.items()
        if of is not None
    ]
