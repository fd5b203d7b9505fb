"""Write docs/answers.md, its figure and `answers.json` from the records, and verify them."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import jinja2

from mlx_attn.errors import find_row
from mlx_attn.files import write_text
from mlx_attn.records import read_record
from mlx_attn.ui.plots import save_figure
from studies import besides, trainings
from studies.figure import length_figure
from studies.lengths import SHORT, Contrast, Cost, Lengths, command
from studies.mixed import Estimate
from studies.plan import registered
from studies.sizes import Sizes, percent, worded
from studies.trainings import ANSWERS, ROOT, read

PAGE = ROOT / "docs" / "answers.md"
FIGURE = ANSWERS / "figures" / "answer-lengths"
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

BESIDE = ("starts", "chapter5", "confirmed", "delta-rules")
"""The other data sets whose costs are on the page."""


def number(estimate: Estimate) -> str:
    """Return a mean with half of its interval, as "+0.010 ±0.010"; Student's is symmetric."""
    return f"{estimate.mean:+.3f} ±{estimate.interval()[1] - estimate.mean:.3f}"


@dataclass(frozen=True)
class Page:
    """The numbers that the template of docs/answers.md asks for."""

    lengths: Lengths

    @cached_property
    def identities(self) -> dict[str, Any]:
        """The numbers of statements of algebra, by check and quantity."""
        checks = read_record(IDENTITIES)
        return {name: check["numbers"] for name, check in checks.items()}

    @cached_property
    def beside(self) -> dict[str, dict[tuple[str, str], Estimate]]:
        """The costs of the other data sets, by arm and world."""
        return {name: besides.estimates(name) for name in BESIDE}

    @cached_property
    def chapter5(self) -> dict[str, tuple[float, int, float]]:
        """The lowest loss, its step and the last loss of each form at the book's size."""
        return besides.lowest(read("chapter5-gpt2"))

    @cached_property
    def states(self) -> dict[str, dict[str, tuple[int, int]]]:
        """How many trainings solved each task of states, of how many."""
        return besides.solved(read("state-tracking"))

    @cached_property
    def sizes(self) -> Sizes:
        """The costs in tokens at two sizes."""
        study = registered()
        return Sizes(study, read(study.name))

    def size_table(self) -> str:
        """Return what each form costs in per cent of the tokens, by size."""
        places = [("S", worded(self.sizes.costs["S"])), ("M", worded(self.sizes.costs["M"]))]
        heads = ["% of the tokens", *(self.sizes.named(size) for size, _ in places)]
        rows = [heads, ["---"] * len(heads)]
        for contrast in self.lengths.table.contrasts:
            if contrast.arm in self.sizes.costs["M"]:
                cells = [self._size_cell(contrast.arm, *place) for place in places]
                rows.append([contrast.says, *cells])
        return "\n".join(f"|{'|'.join(row)}|" for row in rows)

    def _size_cell(self, arm: str, size: str, words: Mapping[str, str]) -> str:
        mean, low, high = percent(self.sizes.costs[size][arm].tokens)
        return f"{mean:+.0f} ({low:.0f} to {high:.0f}) {words[arm]}"

    def tokens(self, arm: str, size: str) -> str:
        """Return what a form costs at a size in per cent of the tokens."""
        return f"{percent(self.sizes.costs[size][arm].tokens)[0]:.0f}"

    def cost(self, arm: str, text: str, steps: int = 0) -> str:
        """Return a cost with its interval, by default after the longest training."""
        return number(self._cost(arm, text, steps).estimate)

    def mean(self, arm: str, text: str, steps: int = 0) -> str:
        """Return a cost without its interval."""
        return f"{self._cost(arm, text, steps).estimate.mean:+.3f}"

    def word(self, arm: str, text: str, steps: int = 0) -> str:
        """Return the word of a cost."""
        return self._cost(arm, text, steps).word

    def _cost(self, arm: str, text: str, steps: int) -> Cost:
        found = self.lengths.cost(arm, text, steps)
        if found is None:
            raise KeyError(f"{arm} on {text} after {steps or 'any'} steps is not measured")
        return found

    def other(self, study: str, arm: str, world: str) -> str:
        """Return a cost of another study, with its interval."""
        return number(self.beside[study][arm, world])

    def recall(self, arm: str) -> str:
        """Return the smallest and the largest ratio of steps that an arm needs to recall."""
        ratios = sorted(besides.ratios(read("recall-time"), arm).values())
        return f"{ratios[0]:.1f} to {ratios[-1]:.1f}"

    def solvers(self, world: str, arm: str) -> str:
        """Return how many trainings of an arm solved a task, as "4 of 4"."""
        return "{} of {}".format(*self.states[world][arm])

    def table(self) -> str:
        """Return the costs of all forms that every study asks, the longest trainings first."""
        columns = self._columns()
        heads = [f"{text}, {self._tokens(text, steps)}" for text, steps in columns]
        rows = [["", "parameters", *heads], ["---"] * (2 + len(columns))]
        for contrast in self.lengths.table.contrasts:
            if not contrast.once:
                found = [self.lengths.cost(contrast.arm, *column) for column in columns]
                cells = [self._cell(cost) for cost in found]
                rows.append([contrast.says, self._saved(contrast), *cells])
        rows.append(["seeds", "", *(self._seeds(*column) for column in columns)])
        return "\n".join(f"|{'|'.join(row)}|" for row in rows)

    def _columns(self) -> list[tuple[str, int]]:
        """Return the long trainings, then those of 300 steps."""
        places = dict.fromkeys((c.text, c.steps) for c in self.lengths.costs.values())
        late = [p for p in places if self._any(*p).tokens >= ENOUGH]
        return [*late, *(place for place in places if place[1] == SHORT)]

    def _any(self, text: str, steps: int) -> Cost:
        return next(c for c in self.lengths.costs.values() if (c.text, c.steps) == (text, steps))

    def _tokens(self, text: str, steps: int) -> str:
        tokens = self._any(text, steps).tokens
        return f"{tokens:.0f}" if tokens >= ENOUGH else f"{tokens:.1f}"

    def _cell(self, cost: Cost | None) -> str:
        return f"{number(cost.estimate)} {cost.word}" if cost else ""

    def _saved(self, contrast: Contrast) -> str:
        """Return the change of the model's parameters on shakespeare, in per cent."""
        cost = self._cost(contrast.arm, "shakespeare", SHORT)
        return f"{-100 * cost.saved / cost.params:+.0f} %" if cost.saved else "0"

    def _seeds(self, text: str, steps: int) -> str:
        """Return the numbers of pairs of a column, as "32-68"."""
        of = [c for c in self.lengths.costs.values() if (c.text, c.steps) == (text, steps)]
        found = sorted({cost.estimate.seeds for cost in of if not cost.contrast.once})
        return f"{found[0]}-{found[-1]}" if len(found) > 1 else f"{found[0]}"

    def trained(self) -> tuple[int, float]:
        """Return the number of all trainings, and the hours of one core of those on processors."""
        every = [training for name in trainings.names() for training in read(name)]
        on_cores = [t.seconds for t in every if not t.device.startswith("gpu")]
        return len(every), sum(on_cores) / 3600

    def text(self) -> str:
        """Return the page."""
        template = Path(__file__).with_name("answers.md.jinja").read_text(encoding="utf-8")
        environment = jinja2.Environment(
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
        )
        made = environment.from_string(template)
        return made.render(page=self, questions=self.lengths.table.questions)

    def numbers(self) -> str:
        """Return what `mlx-attn answers` prints, as JSON: the page's words and every number."""
        answers = _answers(self.text())
        rows = {
            name: {
                "question": one.title.replace("`", ""),
                "also": one.also,
                "answer": answers[one.title],
                "holds_for": one.holds_for or HOLDS_FOR,
                "measured": [],
                "compare": f"mlx-attn compare {one.compare} --start book --data FILE",
            }
            for name, one in self.lengths.table.questions.items()
        }
        for cost in self.lengths.costs.values():
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
        yield from Page(lengths).sizes.lines()
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


def write() -> list[Path]:
    """Write the page, its figure and its numbers from the records; return the files."""
    page = Page(Lengths.read())
    _, bitmap = save_figure(lambda: length_figure(page.lengths), FIGURE)
    bitmap.unlink()
    contents = {PAGE: page.text(), NUMBERS: page.numbers()}
    for path, text in contents.items():
        write_text(path, text)
    return [*contents, FIGURE.with_suffix(".svg")]


def verify() -> Iterator[str]:
    """Yield each disagreement of page, numbers and figure with the records."""
    yield from trainings.complaints()
    page = Page(Lengths.read())
    yield from _changed(PAGE, page.text())
    yield from _changed(NUMBERS, page.numbers())
    yield from _changed(FIGURE.with_suffix(".svg"), _drawn(page.lengths))


def _drawn(lengths: Lengths) -> str:
    """Return the figure as it is drawn from the records now."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        drawing, _ = save_figure(lambda: length_figure(lengths), Path(folder, FIGURE.name))
        return drawing.read_text(encoding="utf-8")


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
