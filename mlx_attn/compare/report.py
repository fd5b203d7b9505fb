"""The report of a comparison: one structure of sections, shown as a page, Markdown or tables.

`report_of` makes the structure, the answer first and what it rests on last. `as_html` and
`as_markdown` write all of it; a terminal gets `verdict_tables` and `summary_lines`.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group
from rich.table import Table as RichTable
from rich.text import Text

from mlx_attn.compare import figures, show, statistics
from mlx_attn.compare.result import AATest, ArmResult, BudgetResult, Comparison, TrialResult
from mlx_attn.compare.show import MISSING, between, number, places, signed, visible
from mlx_attn.files import write_text
from mlx_attn.ui.plots import figure_for_page, markup, render, save_figure
from mlx_attn.ui.terminal import count, duration, memory, plural

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.figure import Figure

SOLVED = 0.99
"""Share of the scored tokens predicted right from which a task counts as solved."""

WRITTEN = 700
"""Characters of a sample that are shown."""

BUDGETS = {
    "steps": "equal steps",
    "seconds": "equal training time",
    "params": "equal parameters",
}
"""What a budget makes equal."""

WORDS = (
    "Equivalent: the difference is shown to be smaller than what counts as one, zero or not. "
    "Better and worse: it is shown not to be zero. Undecided: these seeds show neither."
)

RANGE = "Lines are means over seeds, bands reach from the lowest seed to the highest."

_COURSE_ROWS = 9
"""Of a table about the course of a training."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text, the first cell naming the row; `wordy` cells may wrap, numbers may not."""

    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    wordy: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A figure, and the tables that hold its numbers.

    Attributes:
        name: Of its file, without the ending.
        title: What is shown.
        text: How to read it.
        draw: Makes the figure.
        tables: Beside it on a page.
    """

    name: str
    title: str
    text: str
    draw: Callable[[], "Figure"]
    tables: Sequence[Table] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands below it, in the order of the fields.

    Attributes:
        heading: Its name.
        answers: Verdicts, each with its sentences.
        code: Text to be copied, such as a command.
        text: Paragraphs.
        plots: Figures with their tables.
        tables: Without a figure.
        notes: Paragraphs that must not be overlooked.
        samples: Names of arms, each with what its model writes.
        parts: Sections within.
    """

    heading: str
    answers: Sequence[tuple[str, Sequence[str]]] = ()
    code: str = ""
    text: Sequence[str] = ()
    plots: Sequence[Plot] = ()
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()
    samples: Sequence[tuple[str, str]] = ()
    parts: Sequence["Section"] = ()

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) for field in fields(self)[1:])


@dataclass(frozen=True, slots=True)
class Report:
    """A whole report; `question` is what was asked, "" where nothing was."""

    title: str
    question: str
    sections: Sequence[Section]

    def plots(self) -> list[Plot]:
        """All figures, in order."""
        return [plot for s in self.sections for part in (s, *s.parts) for plot in part.plots]


def report_of(comparison: Comparison) -> Report:
    """The report of a comparison."""
    marks = figures.marks_of(comparison)
    sections = (
        _answers(comparison),
        _noise(comparison),
        *(_budget(budget, comparison, marks) for budget in comparison.budgets),
        _tuning(comparison, marks),
        _samples(comparison),
        _settings(comparison),
        Section(
            "Reproduce it",
            code=comparison.command,
            text=[f"All trainings together took {duration(comparison.seconds)}."],
            tables=[_pairs("Versions and machine", comparison.versions)],
        ),
    )
    return Report(
        comparison.name, comparison.question, [section for section in sections if section]
    )


def _answers(comparison: Comparison) -> Section:
    """What was found of every arm, and all verdicts in one table."""
    arms = _judged(comparison)
    if not arms:
        text = ["There is nothing to compare with: only one arm was trained."]
        return Section("Answer", text=text)
    summary = Table(
        f"Verdicts, and mean differences to {comparison.control} in nats per token",
        ["arm", *map(_name, comparison.budgets)],
        [[arm, *(_cell(b, arm, comparison.delta) for b in comparison.budgets)] for arm in arms],
    )
    answers = [_answer(comparison, arm) for arm in arms]
    tables = [summary] if len(comparison.budgets) > 1 else []
    return Section("Answer", answers, text=[WORDS], tables=tables)


def _judged(comparison: Comparison) -> list[str]:
    """Arms with a verdict under some budget, in order."""
    return list(dict.fromkeys(arm for budget in comparison.budgets for arm in budget.verdicts))


def _answer(comparison: Comparison, arm: str) -> tuple[str, list[str]]:
    """The verdict under the first budget that has one, and sentences on it and on the others."""
    first, *others = [budget for budget in comparison.budgets if arm in budget.verdicts]
    where = f"With {_name(first)}, " if len(comparison.budgets) > 1 else ""
    elsewhere: dict[str, list[str]] = {}
    for budget in others:
        verdict = budget.verdicts[arm]
        difference = signed(verdict.mean, places(comparison.delta))
        said = f"with {_name(budget)} ({difference})"
        elsewhere.setdefault(verdict.word, []).append(said)
    for budget in comparison.budgets:
        if arm in budget.refused:
            elsewhere.setdefault("not to be had", []).append(f"with {_name(budget)}")
    also = [f"{word.capitalize()} {' and '.join(said)}." for word, said in elsewhere.items()]
    verdict = first.verdicts[arm]
    return verdict.word, [f"{where}{_finding(arm, verdict, comparison)}", *also]


def _finding(arm: str, verdict: statistics.Verdict, comparison: Comparison) -> str:
    """A verdict with its numbers, as a sentence."""
    control, unit, more = comparison.control, " nats per token", ""
    said = f"{arm} is {verdict.word} than {control}"
    if verdict.word == "equivalent":
        said = f"{arm} is equivalent to {control} within {comparison.delta:g}{unit}"
        unit = ""
    if verdict.word == "undecided":
        said = f"{arm} against {control} is undecided"
    if verdict.interval and verdict.seeds_needed is not None:
        more = f"; about {show.seeds_needed(verdict)} seeds would decide"
    return f"{said}: {_numbers(verdict, comparison, unit)}{more}."


def _numbers(verdict: statistics.Verdict, comparison: Comparison, unit: str) -> str:
    decimals = places(comparison.delta)
    mean, interval = signed(verdict.mean, decimals), between(verdict.interval, decimals)
    seeds = plural(len(verdict.differences), "seed")
    if interval == MISSING:
        return f"{mean}{unit}, {seeds}, too few for an interval"
    return f"{mean}{unit}, {_interval(comparison)} {interval}, {seeds}"


def _interval(comparison: Comparison) -> str:
    return f"{100 * comparison.confidence:g} % interval"


def _name(budget: BudgetResult) -> str:
    return BUDGETS.get(budget.budget, f"equal {budget.budget}")


def _cell(budget: BudgetResult, arm: str, delta: float) -> str:
    if arm not in budget.verdicts:
        return "cannot be had" if arm in budget.refused else MISSING
    verdict = budget.verdicts[arm]
    return f"{verdict.word} {signed(verdict.mean, places(delta))}"


def _noise(comparison: Comparison) -> Section:
    """What the control differs by from itself."""
    noise, control = comparison.noise, comparison.control
    if noise is None:
        return Section("Noise", text=["The control was not compared with itself."])
    warning = (
        f"{control} differs from itself: seeds vary more than these intervals allow for, so take "
        "the verdicts with care."
    )
    differs = noise.verdict.word in ("better", "worse")
    return Section("Noise", text=[_noise_text(noise, comparison)], notes=[warning] * differs)


def _noise_text(noise: AATest, comparison: Comparison) -> str:
    repeat = (
        "Two trainings with the same seed end with the same loss to the last bit"
        if noise.repeat_difference == 0
        else f"Two trainings with the same seed differ by up to {noise.repeat_difference:.2g} nats"
    )
    control, spread = comparison.control, number(noise.seed_spread, places(comparison.delta) + 1)
    numbers = _numbers(noise.verdict, comparison, " nats per token")
    return (
        f"{repeat}. Between seeds the loss of {control} has a standard deviation of {spread} nats. "
        f"Against itself, with other seeds, {control} is {noise.verdict.word}: {numbers}."
    )


def _budget(budget: BudgetResult, comparison: Comparison, marks: figures.Marks) -> Section:
    """All that was measured under one budget."""
    refused = [f"{arm} cannot be had: {why}" for arm, why in budget.refused.items()]
    heading = _name(budget).capitalize()
    if not budget.arms:
        return Section(heading, text=refused)
    parts = (
        _differences(budget, comparison),
        _losses(budget, comparison),
        _solved(budget, comparison),
        _through_training(budget, comparison, marks),
        _costs(budget, marks),
        _abilities(budget, marks),
        _ranks(budget, marks),
    )
    return Section(heading, text=refused, parts=[part for part in parts if part])


def _differences(budget: BudgetResult, comparison: Comparison) -> Section:
    control, decimals = comparison.control, places(comparison.delta)
    names = ["arm", "difference", _interval(comparison), "verdict", "Holm p", "equivalence p"]
    table = Table(
        f"Loss less that of {control}, in nats per token, paired by seed",
        [*names, "bootstrap interval", "could find", "seeds needed"],
        [
            [
                arm,
                signed(verdict.mean, decimals),
                between(verdict.interval, decimals),
                verdict.word,
                show.probability(verdict.p_holm),
                show.probability(verdict.p_equivalence),
                between(verdict.bootstrap, decimals),
                number(verdict.resolves, decimals),
                show.seeds_needed(verdict),
            ]
            for arm, verdict in budget.verdicts.items()
        ],
    )
    plot = Plot(
        name=f"forest-{budget.budget}",
        title=f"Differences of loss to {control}",
        text=f"Small dots are seeds, paired with {control}'s; the large mark is their mean, its "
        f"line the {_interval(comparison)}. Below zero an arm is better than {control}; within the "
        "band a difference counts as none.",
        draw=lambda: figures.forest_figure(budget, comparison.delta),
        tables=[table],
    )
    return Section("Differences", plots=[plot] if budget.verdicts else [])


def _losses(budget: BudgetResult, comparison: Comparison) -> Section:
    """A row per arm; columns that no arm has are left out."""
    decimals = max(4, places(comparison.delta) + 1)

    def mean(field: str) -> Callable[[ArmResult], str]:
        return lambda arm: number(_mean(arm, field), decimals)

    def spread(arm: ArmResult) -> str:
        losses = [training.val_loss for training in arm.trainings]
        return number(stdev(losses), decimals) if len(losses) > 1 else MISSING

    columns: dict[str, Callable[[ArmResult], str]] = {
        "arm": lambda arm: arm.arm,
        "seeds": lambda arm: str(len(arm.trainings)),
        "loss": mean("val_loss"),
        "between seeds": spread,
        "bits per byte": mean("bits_per_byte"),
        "above floor": mean("above_floor"),
        "accuracy": lambda arm: show.percent(_mean(arm, "accuracy")),
    }
    cells = {name: [cell(arm) for arm in budget.arms] for name, cell in columns.items()}
    kept = {name: column for name, column in cells.items() if set(column) != {MISSING}}
    caption = "Mean validation loss in nats per token, and its standard deviation between seeds"
    return Section("Losses", tables=[Table(caption, [*kept], [*zip(*kept.values(), strict=True)])])


def _mean(arm: ArmResult, field: str) -> float | None:
    """A field's mean over the trainings that have it; None where none has."""
    found = [getattr(training, field) for training in arm.trainings]
    known = [value for value in found if value is not None]
    return fmean(known) if known else None


def _solved(budget: BudgetResult, comparison: Comparison) -> Section:
    """How often and how soon a task was solved; empty where no accuracy was measured."""
    curves = [training.curve for arm in budget.arms for training in arm.trainings]
    if not all(any(point.accuracy is not None for point in curve) for curve in curves):
        return Section("Solved")
    times = {arm.arm: [*map(_time_to_solve, arm.trainings)] for arm in budget.arms}
    control = times[budget.arms[0].arm]
    others = {arm: found for arm, found in times.items() if arm != comparison.control}
    tests = {arm: statistics.log_rank(found, control) for arm, found in others.items()}
    p_values, rows = statistics.holm(tests), []
    for arm, found in times.items():
        rate = statistics.solve_rate(found, comparison.confidence)
        steps = MISSING if rate.median_steps is None else f"{rate.median_steps:,.0f}"
        interval = " to ".join(map(show.percent, rate.interval))
        p_value = show.probability(p_values.get(arm))
        rows.append([arm, f"{rate.solved} of {rate.runs}", interval, steps, p_value])
    caption = (
        f"Seeds that predicted {SOLVED:.0%} of the tokens right, and how soon; log-rank test "
        f"against {comparison.control}"
    )
    headings = ["arm", "solved", _interval(comparison), "median steps", "Holm p"]
    return Section("Solved", tables=[Table(caption, headings, rows)])


def _time_to_solve(training: TrialResult) -> statistics.TimeToSolve:
    right = [p.step for p in training.curve if p.accuracy is not None and p.accuracy >= SOLVED]
    return statistics.TimeToSolve(steps=min(right, default=training.steps), solved=bool(right))


def _through_training(
    budget: BudgetResult, comparison: Comparison, marks: figures.Marks
) -> Section:
    losses = _course("Mean validation loss, nats per token", budget, "val_loss", 4)
    shares = _course("Mean share predicted right", budget, "accuracy", 3)
    plots = [
        Plot(
            name=f"curves-{budget.budget}",
            title="Validation loss through training",
            text=f"{RANGE} Above the loss, below its paired difference to {comparison.control}, "
            "with the band that counts as none. The first losses lie above the figure.",
            draw=lambda: figures.curves_figure(budget, marks, comparison.delta),
            tables=losses,
        ),
        Plot(
            name=f"accuracy-{budget.budget}",
            title="Share of tokens predicted right through training",
            text=RANGE,
            draw=lambda: figures.accuracy_figure(budget, marks),
            tables=shares,
        ),
    ]
    return Section("Through training", plots=[plot for plot in plots if plot.tables])


def _course(
    caption: str, budget: BudgetResult, field: str, decimals: int, points: str = "curve"
) -> list[Table]:
    """Means at a few places of the first arm's curve, a column per arm; none without curves."""
    x, label = ("step", "step") if points == "ranks" else figures.x_axis(budget)
    lines = {arm.arm: figures.series(arm, x, field, points) for arm in budget.arms}
    known = {arm: line for arm, line in lines.items() if line}
    if not known:
        return []
    at = next(iter(known.values())).at
    at = at[np.unique(np.linspace(0, len(at) - 1, _COURSE_ROWS).astype(int))]
    columns = [
        [number(value, decimals) for value in np.interp(at, line.at, line.mean, np.nan, np.nan)]
        for line in known.values()
    ]
    names = [f"{value:,.4g}" if value < 1000 else f"{value:,.0f}" for value in at]
    return [Table(caption, [label, *known], [*zip(names, *columns, strict=True)])]


def _costs(budget: BudgetResult, marks: figures.Marks) -> Section:
    sizes = ["arm", "parameters", "multiply-adds", "cache bytes per token"]
    table = Table(
        "Multiply-adds per token, forward, at full context; time and memory are means",
        [*sizes, "tokens per second", "training", "peak memory", "learning rate"],
        [
            [
                arm.arm,
                f"{arm.params:,}",
                count(arm.multiply_adds),
                f"{arm.cache_bytes_per_token:,}",
                count(_mean(arm, "tok_s") or 0),
                duration(figures.cost(arm, "seconds")),
                memory(_mean(arm, "peak_memory") or 0),
                f"x {arm.lr_scale:g}",
            ]
            for arm in budget.arms
        ],
    )
    plot = Plot(
        name=f"costs-{budget.budget}",
        title="Loss against what it costs",
        text="Lower is better, further left is cheaper; bars reach from the lowest seed to the "
        "highest.",
        draw=lambda: figures.costs_figure(budget, marks),
        tables=[table],
    )
    return Section("Costs", plots=[plot])


def _abilities(budget: BudgetResult, marks: figures.Marks) -> Section:
    names = figures.abilities(budget)
    means = {arm.arm: figures.ability_values(arm, names).mean(axis=0) for arm in budget.arms}
    table = Table(
        "Mean contribution to the loss above the floor, bits per byte",
        ["arm", *names],
        [[arm, *(number(part, 4) for part in parts)] for arm, parts in means.items()],
    )
    plot = Plot(
        name=f"abilities-{budget.budget}",
        title="What each ability adds to the loss",
        text="In bits per byte above the exact floor of the text; bars reach from the lowest seed "
        "to the highest.",
        draw=lambda: figures.abilities_figure(budget, marks),
        tables=[table],
    )
    return Section("Abilities", plots=[plot] if names else [])


def _ranks(budget: BudgetResult, marks: figures.Marks) -> Section:
    plot = Plot(
        name=f"ranks-{budget.budget}",
        title="Effective rank of the heads' matrices through training",
        text=f"S makes the scores, VO is what a head moves x by. {RANGE}",
        draw=lambda: figures.ranks_figure(budget, marks),
        tables=[
            *_course("Effective rank of S, mean", budget, "scores", 2, "ranks"),
            *_course("Effective rank of VO, mean", budget, "value_outputs", 2, "ranks"),
        ],
    )
    return Section("Rank", plots=[plot] if plot.tables else [])


def _tuning(comparison: Comparison, marks: figures.Marks) -> Section:
    """How every arm's learning rate was found: a row per arm, a column per factor."""
    tunings = comparison.tunings
    if not tunings:
        text = ["Every arm has the learning rates of the settings."]
        return Section("Learning rates", text=text)
    factors = sorted({factor for tuning in tunings for factor in tuning.losses})

    def tried(losses: Mapping[float, float | None], factor: float) -> str:
        if factor not in losses:
            return "not tried"
        loss = losses[factor]
        return "diverged" if loss is None else number(loss, 4)

    table = Table(
        "Mean loss for each factor of the learning rates, nats per token",
        ["arm", *(f"x {factor:g}" for factor in factors), "chosen"],
        [[t.arm, *(tried(t.losses, f) for f in factors), f"x {t.best:g}"] for t in tunings],
    )
    plot = Plot(
        name="tuning",
        title="Loss against the learning rate",
        text=f"Means over {plural(len(tunings[0].seeds), 'seed')} that play no part in the "
        "verdicts; a ring marks the factor that was chosen.",
        draw=lambda: figures.tuning_figure(tunings, marks),
        tables=[table],
    )
    edges = [tuning.arm for tuning in tunings if not tuning.interior]
    note = (
        f"{', '.join(edges)}: the best factor is at the edge of those tried, so a better one may "
        "lie beyond it."
    )
    return Section("Learning rates", plots=[plot], notes=[note] if edges else [])


def _samples(comparison: Comparison) -> Section:
    """What the first seed of every arm writes, under the first budget."""
    first = next((budget for budget in comparison.budgets if budget.arms), None)
    trained = {arm.arm: arm.trainings[0] for arm in first.arms if arm.trainings} if first else {}
    samples = [(arm, t.sample[:WRITTEN]) for arm, t in trained.items() if t.sample.strip()]
    if not (first and samples):
        return Section("Samples")
    seed = next(iter(trained.values())).seed
    text = f"What the models of seed {seed} write, greedily, with {_name(first)}."
    return Section("Samples", text=[text], samples=samples)


def _settings(comparison: Comparison) -> Section:
    """What sets the arms apart, what all share, and the text."""
    arms = {arm.arm: arm.settings for budget in comparison.budgets for arm in budget.arms}
    rows = [(name, _flat(settings)) for name, settings in arms.items()]
    own = Table("What sets the arms apart", ["arm", "settings of its own"], rows, wordy=True)
    tables = [own] if rows else []
    tables.append(_pairs("What all arms share", comparison.settings))
    return Section("Settings", tables=[*tables, _pairs("The validation text", comparison.text)])


def _pairs(caption: str, values: Mapping[str, Any]) -> Table:
    rows = [(name, _text(value)) for name, value in values.items()]
    return Table(caption, ["name", "value"], rows, wordy=True)


def _flat(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {_text(value)}" for key, value in settings.items()) or "none"


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        return _flat(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def as_html(report: Report) -> str:
    """The page as text.

    Raises:
        RunError: jinja2 or matplotlib is not installed.
    """
    return render("report", report=report, drawn=_drawn, visible=visible, slug=_slug)


def _drawn(plot: Plot) -> "Markup":
    """A figure without what only an editor of figures needs; names would repeat within a page."""
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", figure_for_page(plot.draw), flags=re.DOTALL)
    return markup(re.sub(r'<g id="[^"]*">', "<g>", svg))


def _slug(*sections: Section) -> str:
    """What an address calls a section."""
    headings = " ".join(section.heading for section in sections)
    return re.sub(r"\W+", "-", headings.lower()).strip("-")


def as_markdown(report: Report) -> str:
    """The report as Markdown, in which nothing that it quotes is markup."""
    lines = [f"# {_escaped(report.title)}"]
    lines += [_escaped(report.question)] if report.question else []
    for section in report.sections:
        lines += _markdown(section, "##")
    return "\n\n".join(lines) + "\n"


def _markdown(section: Section, level: str) -> Iterator[str]:
    yield f"{level} {_escaped(section.heading)}"
    for word, sentences in section.answers:
        yield f"- **{_escaped(word)}**: {_escaped(' '.join(sentences))}"
    if section.code:
        yield _fenced(section.code)
    yield from map(_escaped, section.text)
    for table in (*(table for plot in section.plots for table in plot.tables), *section.tables):
        lines = [table.headings, *table.rows]
        head, *rows = (f"| {' | '.join(map(_escaped, cells))} |" for cells in lines)
        rule = f"|---{'|---:' * (len(table.headings) - 1)}|"
        yield f"{_escaped(table.caption)}:"
        yield "\n".join([head, rule, *rows])
    yield from map(_escaped, section.notes)
    for arm, text in section.samples:
        yield f"**{_escaped(arm)}**\n\n{_fenced(text)}"
    for part in section.parts:
        yield from _markdown(part, f"{level}#")


def _escaped(text: str) -> str:
    """Text on one line, without markup."""
    return re.sub(r"([\\`*_{}\[\]<>#|~])", r"\\\1", " ".join(visible(text).split()))


def _fenced(text: str) -> str:
    """A block of code whose fence is longer than any in the text."""
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{visible(text)}\n{fence}"


_STYLES = {"better": "green", "worse": "red", "equivalent": "cyan"}


def summary_lines(comparison: Comparison) -> list[str]:
    """The answer for every arm, one line each."""
    return [visible(" ".join(_answer(comparison, arm)[1])) for arm in _judged(comparison)]


def verdict_tables(comparison: Comparison) -> Group:
    """A table per budget: every arm's loss, difference, interval and verdict; a line between."""
    return Group(*(line for b in comparison.budgets for line in _verdicts(b, comparison)))


def _verdicts(budget: BudgetResult, comparison: Comparison) -> Iterable[Any]:
    decimals = places(comparison.delta)
    title = f"{_name(budget)}: nats per token, differences to {visible(comparison.control)}"
    looks: dict[str, Any] = {"title_justify": "left", "title_style": "", "padding": (0, 2, 0, 0)}
    table = RichTable(title=title, box=None, **looks)
    table.add_column("arm", overflow="fold")
    for heading in ("loss", "difference", _interval(comparison)):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for arm in budget.arms:
        cells: list[str | Text] = [MISSING] * 3
        if verdict := budget.verdicts.get(arm.arm):
            word = Text(verdict.word, _STYLES.get(verdict.word, ""))
            interval = between(verdict.interval, decimals)
            cells = [signed(verdict.mean, decimals), interval, word]
        loss = number(_mean(arm, "val_loss"), max(4, decimals))
        table.add_row(Text(visible(arm.arm)), loss, *cells)
    yield table
    for arm, why in budget.refused.items():
        yield Text(f"{visible(arm)} cannot be had: {visible(why)}", "dim")
    yield ""


HTML, MARKDOWN = "report.html", "report.md"


def write_report(comparison: Comparison, directory: Path) -> list[Path]:
    """Write report.html and report.md into a directory; returns their paths.

    Raises:
        RunError: jinja2 or matplotlib is not installed, or a file cannot be written.
    """
    report = report_of(comparison)
    texts = {HTML: as_html(report), MARKDOWN: as_markdown(report)}
    for name, text in texts.items():
        write_text(directory / name, text)
    return [directory / name for name in texts]


def save_figures(comparison: Comparison, directory: Path) -> list[Path]:
    """Write every figure as SVG and PNG; returns their paths.

    Raises:
        RunError: matplotlib is not installed, or a file cannot be written.
    """
    plots = report_of(comparison).plots()
    return [path for plot in plots for path in save_figure(plot.draw, directory / plot.name)]
