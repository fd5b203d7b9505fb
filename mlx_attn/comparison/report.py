"""The report of a comparison: one structure of sections, written as a page or as Markdown.

`sections_of` makes the structure, with the answer first and the evidence last; `as_html` and
`as_markdown` write it. show.py prints the same for a terminal.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from math import nan
from pathlib import Path
from statistics import stdev
from typing import TYPE_CHECKING, Any

import numpy as np

from mlx_attn.comparison import figures, machines, show
from mlx_attn.comparison.result import ArmResult, BudgetResult, Comparison, Tuning, times_to_solve
from mlx_attn.comparison.solving import SOLVED, judge_solving
from mlx_attn.errors import plural
from mlx_attn.files import write_text
from mlx_attn.markdown import escaped, fenced
from mlx_attn.ui.plots import figure_for_page, render, save_figure
from mlx_attn.ui.terminal import count, duration, memory

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SAMPLE_CHARS = 700
_COURSE_ROWS = 9  # of a table about the course of a training


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text, the first cell naming the row; `wordy` cells may wrap, numbers may not."""

    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    wordy: bool = False


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure; its file's name, its title, how to read it, and the tables with its numbers."""

    name: str
    title: str
    text: str
    draw: Callable[[], "Figure"]
    tables: Sequence[Table]


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and its content, in the order of the fields."""

    heading: str
    answers: Sequence[tuple[str, Sequence[str]]] = ()  # verdicts, each with its sentences
    code: str = ""  # text to be copied, such as a command
    text: Sequence[str] = ()  # paragraphs
    plots: Sequence[Plot] = ()
    tables: Sequence[Table] = ()  # those without a figure
    notes: Sequence[str] = ()  # paragraphs that must not be overlooked
    samples: Sequence[tuple[str, str]] = ()  # names of arms, each with a text that its model wrote
    parts: Sequence["Section"] = ()
    folded: bool = False  # whether the page shows only the heading until it is opened

    def __bool__(self) -> bool:
        # All fields but the heading and `folded`: a section without content is left out.
        return any(getattr(self, field.name) for field in fields(self)[1:-1])


def sections_of(comparison: Comparison) -> list[Section]:
    """Return all results of a comparison, section by section."""
    # The first budget is part of the answer; the others are evidence.
    budgets = [_budget(budget, comparison) for budget in comparison.budgets]
    first = [_answers(comparison), _noise(comparison), *budgets[:1]]
    trained_on = {"trained on": machines.machines_of(comparison) or "not recorded"}
    evidence = [
        *budgets[1:],
        _tuning(comparison),
        _samples(comparison),
        _settings(comparison),
        Section(
            "Reproduce it",
            code=comparison.command,
            text=[f"All trainings together took {duration(comparison.seconds)}."],
            tables=[_pairs("Versions and machine", {**comparison.versions, **trained_on})],
        ),
    ]
    # The page shows the answer and folds the evidence away.
    return [*filter(None, first), *(replace(part, folded=True) for part in evidence if part)]


def question_of(comparison: Comparison) -> str:
    """Return the question that was asked, or one made from the arms."""
    if comparison.question:
        return comparison.question
    if not (arms := show.judged(comparison)):
        return f"What loss does {comparison.control} reach?"
    does = "do" if len(arms) > 1 else "does"
    named = " and ".join(filter(None, (", ".join(arms[:-1]), arms[-1])))
    return f"How {does} {named} compare with {comparison.control}?"


def _answers(comparison: Comparison) -> Section:
    arms, tables = show.judged(comparison), []
    if not arms:
        alone = "There is nothing to compare with: only one arm was trained."
        return Section("Answer", text=[alone])

    def cell(budget: BudgetResult, arm: str) -> str:
        if verdict := budget.verdicts.get(arm):
            return f"{budget.word(arm)} {show.signed(verdict.mean, show.places(comparison.delta))}"
        return "not feasible" if arm in budget.refused else show.MISSING

    if len(comparison.budgets) > 1:
        caption = f"Verdicts, and mean differences to {comparison.control} in nats per token"
        headings = ["arm", *map(show.budget_name, comparison.budgets)]
        rows = [[arm, *(cell(budget, arm) for budget in comparison.budgets)] for arm in arms]
        tables = [Table(caption, headings, rows)]
    answers = [show.answer_of(comparison, arm) for arm in arms]
    plots = _forest(show.first_judged(comparison), comparison)
    lines = (show.worth_text(comparison), show.meanings_text(comparison))
    texts = [line for line in (machines.mixed_pairs(comparison), *lines) if line]
    return Section("Answer", answers, text=texts, plots=plots, tables=tables)


def _forest(budget: BudgetResult, comparison: Comparison) -> list[Plot]:
    return _plots("forest", comparison, budget, [_differences(budget, comparison)])


def _noise(comparison: Comparison) -> Section:
    noise, control = comparison.noise, comparison.control
    if noise is None:
        return Section("Noise", text=["The control was not compared with itself."])
    warning = (
        f"{control} differs from itself: seeds vary more than these intervals allow for, so take "
        "the verdicts with care."
    )
    notes = [warning] if noise.verdict.word in ("better", "worse") else []
    return Section("Noise", text=[show.noise_text(noise, comparison)], notes=notes)


def _budget(budget: BudgetResult, comparison: Comparison) -> Section:
    refused = [f"{arm} is not feasible: {why}" for arm, why in budget.refused.items()]

    def plots(kind: str, *tables: Table) -> list[Plot]:
        return _plots(kind, comparison, budget, tables)

    # The first budget's differences are part of the answer already.
    in_answer = bool(budget.verdicts) and budget is show.first_judged(comparison)
    losses = _course("Mean validation loss, nats per token", budget, "val_loss", 4)
    shares = _course("Mean share predicted right", budget, "accuracy", 3)
    scores = _course("Effective rank of S, mean", budget, "scores", 2, "ranks")
    outputs = _course("Effective rank of VO, mean", budget, "value_outputs", 2, "ranks")
    parts = (
        Section("Differences", plots=[] if in_answer else _forest(budget, comparison)),
        Section("Losses", tables=[_losses(budget, comparison)]),
        Section("Solved", tables=[*filter(None, [_solved(budget, comparison)])]),
        Section("Through training", plots=plots("curves", losses) + plots("accuracy", shares)),
        Section("Costs", plots=plots("costs", _costs(budget))),
        Section("Skills", plots=plots("abilities", _abilities(budget))),
        Section("Rank", plots=plots("ranks", scores, outputs)),
    )
    heading = show.budget_name(budget).capitalize()
    return Section(heading, text=refused, parts=[part for part in parts if part])


def _plots(
    kind: str, comparison: Comparison, budget: BudgetResult | None, tables: Sequence[Table]
) -> list[Plot]:
    """Return a figure with its tables; none where these have nothing to show."""
    # Title and text are templates with the names of this comparison.
    draw, title, text = figures.FIGURES[kind]
    facts = {"control": comparison.control, "interval": show.interval_name(comparison)}
    facts["seeds"] = plural(len(comparison.tunings[0].seeds), "seed") if comparison.tunings else ""
    return [
        Plot(
            name=f"{kind}-{budget.budget}" if budget else kind,
            title=title.format(**facts),
            text=text.format(**facts),
            draw=partial(draw, budget, comparison),
            tables=tables,
        )
    ] * any(table.rows for table in tables)


def _table(caption: str, items: Iterable[Any], columns: Mapping[str, Callable[..., str]]) -> Table:
    """Return a row per item, without columns that are empty for every item."""
    items = list(items)
    cells = {heading: [cell(item) for item in items] for heading, cell in columns.items()}
    filled = {heading: column for heading, column in cells.items() if {*column} != {show.MISSING}}
    # Columns become rows.
    return Table(caption, [*filled], [*zip(*filled.values(), strict=True)])


def _differences(budget: BudgetResult, comparison: Comparison) -> Table:
    decimals, verdicts = show.places(comparison.delta), budget.verdicts
    columns: dict[str, Callable[[str], str]] = {
        "arm": lambda arm: arm,
        "difference": lambda arm: show.signed(verdicts[arm].mean, decimals),
        show.interval_name(comparison): lambda arm: show.between(verdicts[arm].interval, decimals),
        "verdict": lambda arm: verdicts[arm].word,
        "worst of five": lambda arm: verdicts[arm].other_word or show.MISSING,
        "Holm p": lambda arm: show.probability(verdicts[arm].p_holm),
        "equivalence p": lambda arm: show.probability(verdicts[arm].p_equivalence),
        f"P(below {comparison.delta:g})": lambda arm: show.percent(verdicts[arm].below_margin),
        "tuning error": lambda arm: show.number(verdicts[arm].tuning_error or None, decimals + 1),
        "share of worth": lambda arm: show.percent(verdicts[arm].share),
        "detectable": lambda arm: show.number(verdicts[arm].resolves, decimals),
        "seeds needed": lambda arm: show.seeds_needed(verdicts[arm]),
    }
    caption = f"Loss minus that of {comparison.control}, in nats per token, paired by seed"
    return _table(caption, verdicts, columns)


def _losses(budget: BudgetResult, comparison: Comparison) -> Table:
    decimals = max(4, show.places(comparison.delta) + 1)

    def mean(field: str) -> Callable[[ArmResult], str]:
        return lambda arm: show.number(show.mean_of(arm, field), decimals)

    def spread(arm: ArmResult) -> str:
        losses = [training.val_loss for training in arm.trainings]
        return show.number(stdev(losses) if len(losses) > 1 else None, decimals)

    columns: dict[str, Callable[[ArmResult], str]] = {
        "arm": lambda arm: arm.arm,
        "seeds": lambda arm: str(len(arm.trainings)),
        "loss": mean("val_loss"),
        "between seeds": spread,
        "bits per byte": mean("bits_per_byte"),
        "above floor": mean("above_floor"),
        "accuracy": lambda arm: show.percent(show.mean_of(arm, "accuracy")),
    }
    caption = "Mean validation loss in nats per token, and its standard deviation between seeds"
    return _table(caption, budget.arms, columns)


def _solved(budget: BudgetResult, comparison: Comparison) -> Table | None:
    """Return how often and how soon a task was solved; None for a text."""
    solving = budget.solving
    if not solving and (times := times_to_solve(budget.arms)):  # a result of an older version
        solving = judge_solving(times, comparison.confidence)
    if not solving:
        return None
    columns: dict[str, Callable[[str], str]] = {
        "arm": lambda arm: arm,
        "solved": lambda arm: f"{solving[arm].solved} of {solving[arm].runs}",
        show.interval_name(comparison): (
            lambda arm: " to ".join(map(show.percent, solving[arm].interval))
        ),
        "median steps": lambda arm: show.number(solving[arm].median_steps, 0),
        "Holm p": lambda arm: show.probability(solving[arm].p_holm),
        "verdict": lambda arm: solving[arm].word or show.MISSING,
    }
    caption = (
        f"Seeds that predicted {SOLVED:.0%} of the tokens right, and how soon; log-rank test "
        f"against {comparison.control}"
    )
    return _table(caption, [arm.arm for arm in budget.arms if arm.arm in solving], columns)


def _course(
    caption: str, budget: BudgetResult, field: str, decimals: int, points: str = "curve"
) -> Table:
    """Tabulate means at a few places of the first arm's curve, one column per arm."""
    x, label = ("step", "step") if points == "ranks" else figures.x_axis(budget)
    lines = {arm.arm: figures.series(arm, x, field, points) for arm in budget.arms}
    measured = {arm: line for arm, line in lines.items() if line}
    if not measured:
        return Table(caption, [label], [])
    at = next(iter(measured.values())).at
    at = at[np.unique(np.linspace(0, len(at) - 1, _COURSE_ROWS).astype(int))]
    columns = [
        # [seeds, N] -> the mean, [N]; nan, printed as a dash, before and after an arm's own curve.
        [show.number(v, decimals) for v in np.interp(at, line.at, line.values.mean(0), nan, nan)]
        for line in measured.values()
    ]
    names = [f"{value:,.4g}" if value < 1000 else f"{value:,.0f}" for value in at]
    return Table(caption, [label, *measured], [*zip(names, *columns, strict=True)])


def _costs(budget: BudgetResult) -> Table:
    columns: dict[str, Callable[[ArmResult], str]] = {
        "arm": lambda arm: arm.arm,
        "parameters": lambda arm: f"{arm.params:,}",
        "multiply-adds": lambda arm: count(arm.multiply_adds),
        "cache bytes per token": lambda arm: f"{arm.cache_bytes_per_token:,}",
        "tokens per second": lambda arm: count(show.mean_of(arm, "tok_s") or 0),
        "training": lambda arm: duration(show.mean_of(arm, "seconds") or 0),
        "peak memory": lambda arm: memory(show.mean_of(arm, "peak_memory") or 0),
        "learning rate": lambda arm: f"x {arm.lr_scale:g}",
    }
    caption = "Multiply-adds per token, forward, at full context; time and memory are means"
    return _table(caption, budget.arms, columns)


def _abilities(budget: BudgetResult) -> Table:
    names = figures.abilities(budget)
    means = {arm.arm: figures.ability_values(arm, names).mean(axis=0) for arm in budget.arms}
    return Table(
        "Mean contribution to the loss above the floor, bits per byte",
        ["arm", *names],
        [[arm, *(show.number(part, 4) for part in parts)] for arm, parts in means.items() if names],
    )


def _tuning(comparison: Comparison) -> Section:
    """Show the search for every arm's learning rate: a row per arm, a column per factor."""
    heading, tunings = "Learning rates", comparison.tunings
    if not tunings:
        return Section(heading, text=["Every arm has the learning rates of the settings."])
    columns: dict[str, Callable[[Tuning], str]] = {"arm": lambda tuning: tuning.arm}
    for factor in sorted({factor for tuning in tunings for factor in tuning.losses}):
        # `partial`, because a lambda would see only the last factor of the loop.
        columns[f"x {factor:g}"] = partial(_tried, factor)
    columns["chosen"] = lambda tuning: f"x {tuning.best:g}"
    table = _table("Mean loss by factor of the learning rates, nats per token", tunings, columns)
    edges = ", ".join(tuning.arm for tuning in tunings if not tuning.interior)
    beyond = "the best factor is at the edge of those tried, so a better one may lie beyond it."
    notes = [f"{edges}: {beyond}"] if edges else []
    return Section(heading, plots=_plots("tuning", comparison, None, [table]), notes=notes)


def _tried(factor: float, tuning: Tuning) -> str:
    if factor not in tuning.losses:
        return "not tried"
    loss = tuning.losses[factor]
    return "diverged" if loss is None else show.number(loss, 4)


def _samples(comparison: Comparison) -> Section:
    """Return texts written by the first seed of every arm, under the first budget."""
    first = comparison.budgets[0]
    trained = {arm.arm: arm.trainings[0] for arm in first.arms}
    # The beginning is enough to see whether a model writes words.
    samples = [(arm, t.sample[:_SAMPLE_CHARS]) for arm, t in trained.items() if t.sample.strip()]
    if not samples:
        return Section("Samples")
    # All arms' first trainings have the same seed.
    seed = next(iter(trained.values())).seed
    text = f"What the models of seed {seed} write, greedily, with {show.budget_name(first)}."
    return Section("Samples", text=[text], samples=samples)


def _settings(comparison: Comparison) -> Section:
    """Return the settings of each arm, the shared ones, and the text."""
    arms = {arm.arm: arm.settings for budget in comparison.budgets for arm in budget.arms}
    own = _pairs("What sets the arms apart", arms, "arm", "its own settings")
    shared = _pairs("What all arms share", comparison.settings)
    return Section("Settings", tables=[own, shared, _pairs("The validation text", comparison.text)])


def _pairs(
    caption: str, values: Mapping[str, Any], name: str = "name", value: str = "value"
) -> Table:
    rows = [(key, show.value_text(entry)) for key, entry in values.items()]
    return Table(caption, [name, value], rows, wordy=True)


def as_html(comparison: Comparison) -> str:
    """Return the report as one page that loads nothing."""

    def slug(*sections: Section) -> str:
        return re.sub(r"\W+", "-", " ".join(one.heading for one in sections).lower()).strip("-")

    return render(
        "report",
        comparison=comparison,
        question=question_of(comparison),
        sections=sections_of(comparison),
        drawn=lambda plot: figure_for_page(plot.draw),
        visible=show.visible,
        slug=slug,
    )


def as_markdown(comparison: Comparison) -> str:
    """Return the report as Markdown, with markup in quoted text escaped."""
    lines = [f"# {escaped(comparison.name)}", escaped(comparison.question)]
    for section in sections_of(comparison):
        lines += _markdown(section, "##")
    return "\n\n".join(filter(None, lines)) + "\n"


def _markdown(section: Section, level: str) -> Iterator[str]:
    yield f"{level} {escaped(section.heading)}"
    for word, sentences in section.answers:
        yield f"- **{escaped(word)}**: {escaped(' '.join(sentences))}"
    if section.code:
        yield fenced(section.code)
    yield from map(escaped, section.text)
    for table in (*(table for plot in section.plots for table in plot.tables), *section.tables):
        lines = [table.headings, *table.rows]
        head, *rows = (f"| {' | '.join(map(escaped, cells))} |" for cells in lines)
        # The first column names the row; numbers are aligned to the right.
        rule = f"|---{'|---:' * (len(table.headings) - 1)}|"
        yield f"{escaped(table.caption)}:"
        yield "\n".join([head, rule, *rows])
    yield from map(escaped, section.notes)
    for arm, text in section.samples:
        yield f"**{escaped(arm)}**\n\n{fenced(text)}"
    for part in section.parts:
        yield from _markdown(part, f"{level}#")


def write_report(comparison: Comparison, directory: Path) -> list[Path]:
    """Write report.html and report.md into a directory; returns their paths."""
    texts = {"report.html": as_html(comparison), "report.md": as_markdown(comparison)}
    for name, text in texts.items():
        write_text(directory / name, text)
    return [directory / name for name in texts]


def save_figures(comparison: Comparison, directory: Path) -> list[Path]:
    """Write every figure as SVG and PNG; returns their paths."""
    sections = [part for section in sections_of(comparison) for part in (section, *section.parts)]
    plots = [plot for section in sections for plot in section.plots]
    return [path for plot in plots for path in save_figure(plot.draw, directory / plot.name)]
