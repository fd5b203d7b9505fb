"""Write docs/answers.md, its figure and `answers.json` from the records, and verify them."""

import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain, zip_longest
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import jinja2

from mlx_attn.errors import find_row
from mlx_attn.ui.plots import COLOURS, panels, save_figure
from studies import trainings
from studies.lengths import Cost, Lengths, command
from studies.mixed import Estimate, estimate
from studies.sizes import Sizes
from studies.trainings import ANSWERS, ROOT, SHORT, STANDARD, Training, differences, losses, read

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE = ROOT / "docs" / "answers.md"
FIGURE = ANSWERS / "figures" / "answer-lengths.svg"
NUMBERS = ROOT / "mlx_attn" / "answers.json"

ENOUGH = 20
"""Tokens for each parameter from which a training is long (Hoffmann and others, 2022)."""

_MOST = 12  # seeds that a command asks for
_GREY = "#7f7f7f"
_SIZE = (4.2, 3.6)  # inches of a panel
_APART = 0.06  # octaves between the points of two arms
_TICKS = (1, 2, 5, 10, 20)


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


def size_table(sizes: Sizes, tuned: Sizes, lengths: Lengths) -> str:
    """Return the cost of each form in per cent of the tokens: by size, and at rates of its own."""
    columns = (sizes, "S"), (tuned, "S"), (sizes, "M")
    rows = [["% of the tokens", *(of.named(size) for of, size in columns)]]
    for contrast in lengths.table.contrasts:
        if contrast.arm in sizes.costs["M"]:
            costs = [of.costs[size][contrast.arm] for of, size in columns]
            cells = ["{:+.0f} ({:.0f} to {:.0f}) ".format(*c.percent) + c.word for c in costs]
            rows.append([contrast.says, *cells])
    return _markdown(rows)


def _markdown(rows: list[list[str]]) -> str:
    """Return a table whose first row has the heads."""
    ruled = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join(f"|{'|'.join(row)}|" for row in ruled)


@cache
def costs_of(name: str) -> dict[tuple[str, str], Estimate]:
    """Return the cost of each arm in each world of another data set, over seeds."""
    of, found = losses(read(name)), dict[tuple[str, str], Estimate]()
    for study, world, arm in of:
        by_seed = differences(of, (study, world, arm))
        if arm != STANDARD and len(by_seed) > 1:
            found[arm, world] = estimate([by_seed], 0.0)
    return found


def chapter5() -> dict[str, tuple[float, int]]:
    """Return the lowest loss of each form's one training at the book's size, and its step."""
    return {t.arm: min((loss, step) for step, loss in t.curve) for t in read("chapter5-gpt2")}


def solved(trainings: Iterable[Training], world: str, arm: str) -> str:
    """Return how many trainings of an arm solved a task, as "4 of 4"."""
    done = [t.steps_to_solve[1] for t in trainings if (t.world, t.arm) == (world, arm)]
    return f"{sum(done)} of {len(done)}"


def ratios(trainings: Iterable[Training], arm: str) -> list[float]:
    """Return how many times the standard form's steps an arm needs to solve a task, by world.

    A geometric mean over seeds, and the smallest first. A training that never solved it counts with
    all of its steps, so that the ratio is then at least this.
    """
    steps = defaultdict[tuple[str, str], dict[int, float]](dict)
    for t in trainings:
        steps[t.world, t.arm][t.seed] = log(t.steps_to_solve[0])
    worlds = [world for world, of in steps if of == arm]
    return sorted(
        exp(fmean(steps[world, arm][s] - one for s, one in steps[world, STANDARD].items()))
        for world in worlds
    )


def length_figure(lengths: Lengths) -> "Figure":
    """Draw a panel for each text, with the 95 % interval of every cost.

    The axis is in tokens for each parameter of the book's form, so that texts can be compared.
    """
    contrasts = [c for c in lengths.table.contrasts if not c.once]
    texts = lengths.table.texts
    figure, axes = panels(len(texts), len(texts), _SIZE, sharex=True, sharey=True)
    for axis, (text, row) in zip(axes, texts.items(), strict=True):
        axis.axhspan(-row.margin, row.margin, color=_GREY, alpha=0.15, linewidth=0)
        axis.axhline(0, color=_GREY, linewidth=0.8)
        for place, contrast in enumerate(contrasts):
            shift = 2 ** (_APART * (place - (len(contrasts) - 1) / 2))
            of_arm = [c for c in lengths.costs.values() if (c.contrast, c.text) == (contrast, text)]
            _draw(axis, sorted(of_arm, key=lambda c: c.steps), shift, COLOURS[place])
        axis.set_xscale("log")
        axis.set_xticks(_TICKS, [f"{tick}" for tick in _TICKS])
        axis.set_xticks([], minor=True)
        axis.set_title(text)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4)
    figure.supxlabel("tokens of training for each parameter; grey: the margin")
    figure.supylabel("nats per token above the book's form")
    return figure


def _draw(axis, costs: list[Cost], shift: float, colour: str) -> None:
    """Draw one arm's costs by length, with their intervals."""
    means = [cost.estimate.mean for cost in costs]
    reach = [cost.estimate.reach() for cost in costs]
    tokens = [cost.tokens * shift for cost in costs]
    label = costs[0].contrast.says.replace("`", "") if costs else ""
    look = {"color": colour, "marker": "o", "markersize": 3, "linewidth": 1.2}
    axis.errorbar(tokens, means, reach, label=label, **look)


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
        sizes=Sizes.read(trainings.SIZES[0]),
        tuned=Sizes.read(trainings.SIZES[1]),
        size_table=size_table,
        costs_of=costs_of,
        chapter5=chapter5,
        solved=solved,
        ratios=ratios,
        read=read,
        trained=trained,
    )


def numbers(lengths: Lengths, page: str) -> str:
    """Return what `mlx-attn answers` prints, as JSON: the page's words and every number."""
    # The bold sentences below each heading.
    found = re.findall(r"^## (.+)\n\*\*(.+?)\*\*", page, re.MULTILINE)
    answers = {title: answer.replace("`", "") for title, answer in found}
    rows = {
        name: {
            "question": one.title.replace("`", ""),
            "also": one.also,
            "answer": answers[one.title],
            "holds_for": one.holds_for or lengths.table.holds_for,
            "measured": [],
            "compare": f"mlx-attn compare {one.compare} --start book --data FILE",
        }
        for name, one in lengths.table.questions.items()
    }
    for cost in lengths.costs.values():
        rows[cost.contrast.question]["measured"].append(_row(cost))
    return json.dumps({"questions": rows}, indent=1, ensure_ascii=False) + "\n"


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

    The study of two sizes is a question, `sizes`, with one command for each registration.

    Raises:
        ConfigError: No question has this name.
    """
    lengths = Lengths.read()
    questions = lengths.table.questions.items()
    names = {"sizes": "sizes"} | {one: name for name, q in questions for one in (name, *q.also)}
    question = find_row(names, question, "question")
    if question == "sizes":
        yield from chain(*(Sizes.read(name).lines() for name in trainings.SIZES))
        return
    if question == "chapter5":
        yield from (f"{arm}: {loss:.3f} at step {n}" for arm, (loss, n) in chapter5().items())
    for cost in lengths.costs.values():
        if cost.contrast.question == question:
            row = _row(cost)
            yield (
                "{form} to {control}, {text}, {steps} steps: {difference:+.4f} "
                "({interval[0]:+.4f} to {interval[1]:+.4f}), {word}\n"
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
    for place, (line, should) in enumerate(zip_longest(written, expected, fillvalue=""), 1):
        if line != should:
            yield f"{path}, line {place}: '{line[:200]}', and the records say '{should[:200]}'"


def _drawer(lines: list[str]) -> str:
    return next((line.strip() for line in lines if "Matplotlib v" in line), "")
