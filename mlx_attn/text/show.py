"""How texts and tasks look: tables of them, and stories in colours."""

import math
from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from mlx_attn.text.corpus import Corpus
from mlx_attn.text.downloads import CORPORA, data_directory
from mlx_attn.text.stories import Story
from mlx_attn.text.tasks import TASKS
from mlx_attn.ui.terminal import memory, word_table

_STYLES = {
    "free": "bright_black",
    "grammar": "",
    "agreement": "magenta",
    "recall": "black on cyan",
    "copy": "black on green",
    "counting": "black on yellow",
}
"""A style for every ability, readable on dark and on light terminals: gray if nobody can know."""


def corpora_facts() -> list[dict[str, Any]]:
    """Return the corpora known by name, and whether they are here."""
    keys = ("name", "bytes", "licence", "digest", "present", "url")
    rows: list[tuple[Any, ...]] = [("tales", None, "MIT, generated here", None, True, None)]
    for name, row in CORPORA.items():
        is_here = (data_directory() / row.file).exists()
        rows.append((name, row.size, row.licence, row.digest, is_here, row.url))
    return [dict(zip(keys, row, strict=True)) for row in rows]


def tasks_facts() -> list[dict[str, Any]]:
    """Return the probing tasks, and the forms of attention that each is predicted to separate."""
    return [
        {"name": task.name, "asks": task.summary, "separates": task.separates, "sizes": task.sizes}
        for task in TASKS.values()
    ]


def listed(
    corpora: Sequence[dict[str, Any]], tasks: Sequence[dict[str, Any]]
) -> tuple[Table, str, Table]:
    """Return both for a terminal."""
    texts: list[tuple[str, ...]] = []
    for fact in corpora:
        size = memory(fact["bytes"]) if fact["bytes"] else "any"
        texts.append((fact["name"], size, "yes" if fact["present"] else "no", fact["licence"]))
    asked = [(fact["name"], fact["asks"], fact["separates"]) for fact in tasks]
    heading = ("task", "documents", "predicted to separate")
    return word_table(("name", "size", "here", "licence"), texts), "", word_table(heading, asked)


def corpus_facts(corpus: Corpus) -> dict[str, Any]:
    """Return the figures of a prepared text."""
    train, val = corpus.train, corpus.val
    bits = None
    if val.floor_nats is not None and val.scored is None:
        bits = val.floor_nats / math.log(2) / val.n_bytes
    return {
        "name": corpus.name,
        "tokenizer": corpus.tokenizer.kind,
        "vocabulary": corpus.tokenizer.vocab_size,
        "training_bytes": train.n_bytes,
        "training_tokens": len(train.tokens),
        "validation_bytes": val.n_bytes,
        "validation_tokens": len(val.tokens),
        "bytes_per_token": round(train.n_bytes / len(train.tokens), 3),
        "scored_tokens": val.n_scored,
        "floor_nats_per_token": val.floor,
        "floor_bits_per_byte": bits,
        "begins": corpus.tokenizer.decode(train.tokens[:60]).strip(),
    }


def facts_rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Return names and values for people."""
    return [(name.replace("_", " "), _shown(value)) for name, value in facts.items()]


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def coloured(stories: Sequence[Story]) -> Text:
    """Return stories with their words coloured by ability, after the key to the colours."""
    key = Text("  ").join(Text(name, style) for name, style in _STYLES.items())
    text = Text("\n").join(
        Text.assemble(*((story.text[s.start : s.end], _STYLES[s.ability]) for s in story.spans))
        for story in stories
    )
    return Text("\n\n").join([key, text])
