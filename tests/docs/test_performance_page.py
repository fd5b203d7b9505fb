"""The tables of docs/performance.md are what was measured. Run as a script, it rewrites them.

python benchmarks/floors.py --json > docs/performance/tiny.json
python tests/docs/test_performance_page.py
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "performance.md"
RUNS = ROOT / "docs" / "performance"
MARKS = re.compile(r"(<!-- bench: (\w+) -->\n)(.*?)(<!-- /bench -->)", re.DOTALL)


def tables(name: str) -> str:
    """All tables of one run, in Markdown."""
    import floors

    found = json.loads((RUNS / f"{name}.json").read_text(encoding="utf-8"))
    measured = found["measurements"]
    parts = [_machine(found["machine"])]
    for work in dict.fromkeys(row["work"] for row in measured):
        rows = [row for row in measured if row["work"] == work]
        speeds, *shares = floors.tables(rows).items()
        parts += [_table(*speeds), *(_table("share of its time", lines) for _, lines in shares)]
    if found["peers"]:
        parts.append(_table("compared with", floors.peers_table(found["peers"])))
    return "\n".join(parts)


def _machine(facts: dict[str, Any]) -> str:
    system = facts["platform"].split("-")[0]
    return f"On {system}, {facts['device']} ({facts['chip']}), mlx {facts['mlx']}.\n"


def _table(title: str, lines: list[tuple[str, dict[str, str]]]) -> str:
    headings = list(lines[0][1])
    rows = [[title, *headings], ["---", *["---:"] * len(headings)]]
    rows += [[name, *cells.values()] for name, cells in lines]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def test_its_tables_are_what_was_measured():
    found = MARKS.findall(PAGE.read_text(encoding="utf-8"))
    assert found
    for _, name, text, _ in found:
        assert text == tables(name), f"run: python tests/docs/{Path(__file__).name}"


def test_every_run_is_shown():
    runs = {file.stem for file in RUNS.glob("*.json")}
    assert runs == {name for _, name, _, _ in MARKS.findall(PAGE.read_text(encoding="utf-8"))}


if __name__ == "__main__":
    sys.path.append(str(ROOT / "benchmarks"))
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(MARKS.sub(lambda m: m[1] + tables(m[2]) + m[4], page), encoding="utf-8")
