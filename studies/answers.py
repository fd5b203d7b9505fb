"""Write docs/answers.md, its figure and `answers.json` from the records, and verify them."""

import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import jinja2

from mlx_attn.errors import find_row
from mlx_attn.records import read_record
from mlx_attn.ui.plots import save_figure
from studies import besides, trainings
from studies.figure import length_figure
from studies.lengths import Cost, Lengths, command
from studies.sizes import Sizes
from studies.trainings import ANSWERS, ROOT, SHORT, read

PAGE = ROOT / "docs" / "answers.md"
FIGURE = ANSWERS / "figures" / "answer-lengths.svg"
NUMBERS = ROOT / "mlx_attn" / "answers.json"
IDENTITIES = ANSWERS / "identities.json"

ENOUGH = 20
"""Tokens for each parameter from which a training is long (Hoffmann and others, 2022)."""

HOLDS_FOR = (
    "Losses of models of two layers and width 64, in nats per token above those of the control; "
    "positive is worse. All start as in the book; the presets nano, tiny and speedrun start "
    "branches at zero, where costs differ."
)

_MOST = 12  # seeds that a command asks for


def length_table(lengths: Lengths) -> str:
    """Return the costs of all forms that every study asks, the longest trainings first."""
    columns = _columns(lengths)
    firsts = [next(iter(column.values())) for column in columns]
    rows = [["", "parameters", *(f"{cost.text}, {_tokens(cost)}" for cost in firsts)]]
    for contrast in lengths.table.contrasts:
        if not contrast.once:
            found = [column.get(contrast.arm) for column in columns]
            cells = [f"{cost.estimate} {cost.word}" if cost else "" for cost in found]
            saved = _saved(lengths.costs[contrast.arm, "shakespeare", SHORT])
            rows.append([contrast.says, saved, *cells])
    rows.append(["seeds", "", *(_seeds(column) for column in columns)])
    return _markdown(rows)


def _columns(lengths: Lengths) -> list[dict[str, Cost]]:
    """Return by arm the costs of the long trainings, then those of 300 steps."""
    columns = defaultdict[tuple[str, int], dict[str, Cost]](dict)
    for cost in lengths.costs.values():
        if not cost.contrast.once and (cost.tokens >= ENOUGH or cost.steps == SHORT):
            columns[cost.text, cost.steps][cost.contrast.arm] = cost
    return [columns[place] for place in sorted(columns, key=lambda place: place[1] == SHORT)]


def _tokens(cost: Cost) -> str:
    return f"{cost.tokens:.0f}" if cost.tokens >= ENOUGH else f"{cost.tokens:.1f}"


def _saved(cost: Cost) -> str:
    """Return the change of the model's parameters in per cent."""
    return f"{-100 * cost.saved / cost.params:+.0f} %" if cost.saved else "0"


def _seeds(column: dict[str, Cost]) -> str:
    """Return the numbers of pairs of a column, as "32-68"."""
    found = sorted({cost.estimate.seeds for cost in column.values()})
    return f"{found[0]}-{found[-1]}" if len(found) > 1 else f"{found[0]}"


def size_table(sizes: Sizes, lengths: Lengths) -> str:
    """Return what each form costs in per cent of the tokens, by size."""
    places = ("S", "M")
    rows = [["% of the tokens", *map(sizes.named, places)]]
    for contrast in lengths.table.contrasts:
        if contrast.arm in sizes.costs["M"]:
            costs = [sizes.costs[size][contrast.arm] for size in places]
            cells = ["{:+.0f} ({:.0f} to {:.0f}) ".format(*c.percent) + c.word for c in costs]
            rows.append([contrast.says, *cells])
    return _markdown(rows)


def _markdown(rows: list[list[str]]) -> str:
    """Return a table whose first row has the heads."""
    ruled = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join(f"|{'|'.join(row)}|" for row in ruled)


def trained() -> tuple[int, float]:
    """Return the number of all trainings, and the hours of one core of those on processors."""
    every = [training for name in trainings.names() for training in read(name)]
    on_cores = [t.seconds for t in every if not t.device.startswith("gpu")]
    return len(every), sum(on_cores) / 3600


def page_text(lengths: Lengths) -> str:
    """Return the page."""
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    template = Path(__file__).with_name("answers.md.jinja").read_text(encoding="utf-8")
    return environment.from_string(template).render(
        lengths=lengths,
        questions=lengths.table.questions,
        length_table=length_table,
        sizes=Sizes.read(),
        size_table=size_table,
        besides=besides,
        read=read,
        identities=read_record(IDENTITIES),
        trained=trained,
    )


def numbers(lengths: Lengths, page: str) -> str:
    """Return what `mlx-attn answers` prints, as JSON: the page's words and every number."""
    answers = _answers(page)
    rows = {
        name: {
            "question": one.title.replace("`", ""),
            "also": one.also,
            "answer": answers[one.title],
            "holds_for": one.holds_for or HOLDS_FOR,
            "measured": [],
            "compare": f"mlx-attn compare {one.compare} --start book --data FILE",
        }
        for name, one in lengths.table.questions.items()
    }
    for cost in lengths.costs.values():
        rows[cost.contrast.question]["measured"].append(_row(cost))
    return json.dumps({"questions": rows}, indent=1, ensure_ascii=False) + "\n"


def _answers(page: str) -> dict[str, str]:
    """Return the bold sentences below each heading of the page, without Markdown."""
    found = re.findall(r"^## (.+)\n\*\*(.+?)\*\*", page, re.MULTILINE)
    return {title: answer.replace("`", "") for title, answer in found}


def _row(cost: Cost) -> dict[str, Any]:
    """Return a cost as a row of `answers.json`."""
    low, high = cost.estimate.interval()
    return {
        "form": cost.contrast.arm,
        "control": cost.contrast.control,
        "text": cost.text,
        "steps": cost.steps,
        "tokens_per_parameter": round(cost.tokens, 1),
        "seeds": cost.estimate.seeds,
        "searches": cost.estimate.searches,
        "difference": round(cost.estimate.mean, 6),
        "interval": [round(low, 6), round(high, 6)],
        "word": cost.word,
        "loss": round(cost.loss, 6),
        "parameters": cost.params,
        "parameters_saved": cost.saved,
    }


def show(question: str) -> Iterator[str]:
    """Yield a line for every number of a question, and the command that trains it again.

    The study of two sizes is a question, `sizes`, with one command for all.

    Raises:
        ConfigError: No question has this name.
    """
    lengths = Lengths.read()
    if question == "sizes":
        yield from Sizes.read().lines()
        return
    find_row(lengths.table.questions, question, "question")
    for cost in lengths.costs.values():
        if cost.contrast.question == question:
            row = _row(cost)
            yield (
                "{form} to {control}, {text}, {steps} steps: {difference:+.4f} "
                "({interval[0]:+.4f} to {interval[1]:+.4f}), {word}".format(**row)
            )
            yield (
                "  {seeds} seeds, searches: {searches}, {tokens_per_parameter} tokens per "
                "parameter, {parameters_saved} of {parameters} parameters saved".format(**row)
            )
            asked = cost.contrast, cost.text, cost.steps
            means = [
                f"{study} {fmean(by_seed):+.4f} ({len(by_seed)})"
                for study, by_seed in lengths.studies(*asked).items()
            ]
            yield f"  by study, with its seeds: {', '.join(means)}"
            yield f"  {command(lengths.table, *asked, min(_MOST, cost.estimate.seeds))}"


def contents() -> dict[Path, str]:
    """Return the page, its numbers and its figure, as the records make them."""
    lengths = Lengths.read()
    page = page_text(lengths)
    with tempfile.TemporaryDirectory() as folder:
        drawing, _ = save_figure(lambda: length_figure(lengths), Path(folder, FIGURE.stem))
        figure = drawing.read_text(encoding="utf-8")
    return {PAGE: page, NUMBERS: numbers(lengths, page), FIGURE: figure}


def verify() -> Iterator[str]:
    """Yield each disagreement of page, numbers and figure with the records."""
    yield from trainings.complaints()
    for path, right in contents().items():
        yield from _changed(path, right)


def _changed(path: Path, right: str) -> Iterator[str]:
    """Yield the lines in which a file differs from its text made from the records."""
    written, expected = path.read_text(encoding="utf-8").splitlines(), right.splitlines()
    if path.suffix == ".svg" and _drawer(written) != _drawer(expected):
        return  # another version of matplotlib draws other lines of the same numbers
    if len(written) != len(expected):
        yield f"{path}: {len(written)} lines, and the records make {len(expected)}"
    for place, (line, should) in enumerate(zip(written, expected, strict=False), 1):
        if line != should:
            yield f"{path}, line {place}: '{line[:200]}', and the records say '{should[:200]}'"


def _drawer(lines: list[str]) -> str:
    return next((line.strip() for line in lines if "Matplotlib v" in line), "")
