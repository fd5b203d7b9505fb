"""The tables of docs/performance.md are what was measured. Run as a script, it rewrites them.

mlx-attn bench --json > docs/performance/tiny.json && python tests/docs/test_performance_page.py
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlx_attn.bench.show import (
    BESIDE,
    SPEEDS,
    TITLES,
    comparisons_from,
    measurements_from,
    peer_cells,
    speed_cells,
)

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGE = DOCS / "performance.md"
MARKS = re.compile(r"(<!-- bench: (\w+) -->\n)(.*?)(<!-- /bench -->)", re.DOTALL)


def tables(name: str) -> str:
    """All tables of one run, in Markdown."""
    found = json.loads((DOCS / "performance" / f"{name}.json").read_text(encoding="utf-8"))
    measured = measurements_from(found["measurements"])
    parts = [_machine(found["machine"])]
    for work in dict.fromkeys(row.work for row in measured):
        rows = [row for row in measured if row.work == work]
        speeds = [[row.name, *speed_cells(row, rows[0])] for row in rows]
        shares = [[row.name, *(f"{s:.0%}" for s in row.shares.values())] for row in rows]
        parts.append(_table(TITLES[work], SPEEDS, speeds))
        parts.append(_table("share of its time", list(rows[0].shares), shares))
    peers = [[f"{r.peer}: {r.work}", *peer_cells(r)] for r in comparisons_from(found["peers"])]
    if peers:
        parts.append(_table("beside others", BESIDE, peers))
    return "\n".join(parts)


def _machine(facts: dict[str, Any]) -> str:
    return f"On {facts['platform'].split('-')[0]}, {facts['device']}, mlx {facts['mlx']}.\n"


def _table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [[title, *headings], ["---", *["---:"] * len(headings)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def test_its_tables_are_what_was_measured():
    found = MARKS.findall(PAGE.read_text(encoding="utf-8"))
    assert found
    for _, name, text, _ in found:
        assert text == tables(name), f"run: python tests/docs/{Path(__file__).name}"


def test_every_run_is_shown():
    runs = {file.stem for file in (DOCS / "performance").glob("*.json")}
    assert runs == {name for _, name, _, _ in MARKS.findall(PAGE.read_text(encoding="utf-8"))}


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(MARKS.sub(lambda m: m[1] + tables(m[2]) + m[4], page), encoding="utf-8")
