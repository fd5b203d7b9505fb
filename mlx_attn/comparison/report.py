"""The report of a comparison: one structure of sections, written as a page or as Markdown.

`sections_of` makes the structure, with the answer first and the evidence last; `as_html` and
`as_markdown` write it. show.py prints the same for a terminal.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from math import nan
from pathlib import Path
from statistics import stdev
from typing import TYPE_CHECKING, Any

import numpy as np

from mlx_attn.comparison import figures, show
from mlx_attn.comparison.result import BudgetResult, Comparison, times_to_solve
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

_RANGE = "Lines are means over seeds, bands reach from the lowest seed to the highest."
_BARS = "bars reach from the lowest seed to the highest."


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

    def __bool__(self) -> bool:
        # All fields but the heading: a section without content is left out.
        return any(getattr(self, field.name) for field in fields(self)[1:])


def sections_of(comparison: Comparison) -> list[Section]:
    """Return all results of a comparison; the page folds all sections after the third."""
    # The first budget is part of the answer; the others are evidence.
    first, *others = (_budget(budget, comparison) for budget in comparison.budgets)
    chips = {
        t.machine.get("chip", "") for b in comparison.budgets for a in b.arms for t in a.trainings
    }
    trained_on = "; ".join(sorted(chips - {""})) or "not recorded"
    reproduce = Section(
        "Reproduce it",
        code=comparison.command,
        text=[f"All trainings together took {duration(comparison.seconds)}."],
        tables=[_pairs("Versions and machine", {**comparison.versions, "trained on": trained_on})],
    )
    evidence = (*others, _tuning(comparison), _samples(comparison), _settings(comparison))
    sections = (_answers(comparison), _noise(comparison), first, *evidence, reproduce)
    return [section for section in sections if section]


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
    if len(comparison.budgets) > 1:
        decimals = show.places(comparison.delta)
        headings = ["arm", *map(show.budget_name, comparison.budgets)]
        rows = [[arm] for arm in arms]
        for row, budget in ((row, budget) for row in rows for budget in comparison.budgets):
            arm = row[0]
            if verdict := budget.verdicts.get(arm):
                row.append(f"{budget.word(arm)} {show.signed(verdict.mean, decimals)}")
            else:
                row.append("not feasible" if arm in budget.refused else show.MISSING)
        caption = f"Verdicts, and mean differences to {comparison.control} in nats per token"
        tables = [Table(caption, headings, rows)]
    lines = show.worth_text, show.meanings_text
    return Section(
        "Answer",
        answers=[show.answer_of(comparison, arm) for arm in arms],
        text=[text for line in lines if (text := line(comparison))],
        plots=_forest(show.first_judged(comparison), comparison),
        tables=tables,
    )


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
    def plots(kind: str, draw: Any, title: str, text: str, *tables: Table) -> list[Plot]:
        drawn = partial(draw, budget, comparison)
        plot = Plot(f"{kind}-{budget.budget}", title, text, drawn, tables)
        return [plot] if any(table.rows for table in tables) else []

    title = "Validation loss through training"
    text = (
        f"{_RANGE} Above the loss, below its paired difference to {comparison.control}, with the "
        "band that counts as none. The first losses lie above the figure."
    )
    losses = _course("Mean validation loss, nats per token", budget, "val_loss", 4)
    course = plots("curves", figures.curves_figure, title, text, losses)
    title = "Share of tokens predicted right through training"
    shares = _course("Mean share predicted right", budget, "accuracy", 3)
    course += plots("accuracy", figures.accuracy_figure, title, _RANGE, shares)
    text = f"Lower is better, further left is cheaper; {_BARS}"
    costs = plots("costs", figures.costs_figure, "Loss against cost", text, _costs(budget))
    title = "Contribution of each skill to the loss"
    text = f"In bits per byte above the exact floor of the text; {_BARS}"
    skills = plots("abilities", figures.abilities_figure, title, text, _abilities(budget))
    title = "Effective rank of the heads' matrices through training"
    text = f"S makes the scores, VO maps x to a head's output. {_RANGE}"
    scores = _course("Effective rank of S, mean", budget, "scores", 2, "ranks")
    outputs = _course("Effective rank of VO, mean", budget, "value_outputs", 2, "ranks")
    ranks = plots("ranks", figures.ranks_figure, title, text, scores, outputs)
    # The first budget's differences are part of the answer already.
    in_answer = bool(budget.verdicts) and budget is show.first_judged(comparison)
    parts = (
        Section("Differences", plots=[] if in_answer else _forest(budget, comparison)),
        Section("Losses", tables=[_losses(budget, comparison)]),
        Section("Solved", tables=_solved(budget, comparison)),
        Section("Through training", plots=course),
        Section("Costs", plots=costs),
        Section("Skills", plots=skills),
        Section("Rank", plots=ranks),
    )
    refused = [f"{arm} is not feasible: {why}" for arm, why in budget.refused.items()]
    heading = show.budget_name(budget).capitalize()
    return Section(heading, text=refused, parts=[part for part in parts if part])


def _forest(budget: BudgetResult, comparison: Comparison) -> list[Plot]:
    control, interval = comparison.control, show.interval_name(comparison)
    decimals = show.places(comparison.delta)
    rows = [
        {
            "arm": arm,
            "difference": show.signed(verdict.mean, decimals),
            interval: show.between(verdict.interval, decimals),
            "verdict": verdict.word,
            "worst of five": verdict.other_word or show.MISSING,
            "Holm p": show.probability(verdict.p_holm),
            "equivalence p": show.probability(verdict.p_equivalence),
            f"P(below {comparison.delta:g})": show.percent(verdict.below_margin),
            "tuning error": show.number(verdict.tuning_error or None, decimals + 1),
            "slope": show.number(verdict.slope or None, 2),
            "share of worth": show.percent(verdict.share),
            "detectable": show.number(verdict.resolves, decimals),
            "seeds needed": show.seeds_needed(verdict),
        }
        for arm, verdict in budget.verdicts.items()
    ]
    further = plural(len(comparison.further_control), "further training")
    adjusted = f", adjusted by its loss in {further}" if comparison.further_control else ""
    plot = Plot(
        f"forest-{budget.budget}",
        f"Differences of loss to {control}",
        f"Small dots are seeds, paired with {control}'s{adjusted}; the large mark is their mean, "
        f"its line the {interval}. Below zero an arm is better than {control}; within the band a "
        "difference counts as none.",
        partial(figures.forest_figure, budget, comparison),
        [_table(f"Loss minus that of {control}, in nats per token, paired by seed", rows)],
    )
    return [plot] if rows else []


def _table(caption: str, rows: Sequence[Mapping[str, str]]) -> Table:
    """Return a table of rows by heading, without columns that are empty in every row."""
    headings = rows[0] if rows else ()
    filled = [name for name in headings if any(row[name] != show.MISSING for row in rows)]
    return Table(caption, filled, [[row[name] for name in filled] for row in rows])


def _losses(budget: BudgetResult, comparison: Comparison) -> Table:
    decimals, rows = max(4, show.places(comparison.delta) + 1), []
    for arm in budget.arms:
        losses = [training.val_loss for training in arm.trainings]
        row = {
            "arm": arm.arm,
            "seeds": str(len(losses)),
            "loss": show.number(show.mean_of(arm, "val_loss"), decimals),
            "between seeds": show.number(stdev(losses) if len(losses) > 1 else None, decimals),
            "bits per byte": show.number(show.mean_of(arm, "bits_per_byte"), decimals),
            "above floor": show.number(show.mean_of(arm, "above_floor"), decimals),
            "accuracy": show.percent(show.mean_of(arm, "accuracy")),
        }
        rows.append(row)
    caption = "Mean validation loss in nats per token, and its standard deviation between seeds"
    return _table(caption, rows)


def _solved(budget: BudgetResult, comparison: Comparison) -> list[Table]:
    """Return how often and how soon a task was solved; nothing for a text."""
    solving = budget.solving
    if not solving and (times := times_to_solve(budget.arms)):  # a result of an older version
        solving = judge_solving(times, comparison.confidence)
    arms = [(arm.arm, solving[arm.arm]) for arm in budget.arms if arm.arm in solving]
    rows = [
        {
            "arm": arm,
            "solved": f"{one.solved} of {one.runs}",
            show.interval_name(comparison): " to ".join(map(show.percent, one.interval)),
            "median steps": show.number(one.median_steps, 0),
            "Holm p": show.probability(one.p_holm),
            "verdict": one.word or show.MISSING,
        }
        for arm, one in arms
    ]
    caption = (
        f"Seeds that predicted {SOLVED:.0%} of the tokens right, and how soon; log-rank test "
        f"against {comparison.control}"
    )
    return [_table(caption, rows)] if solving else []


def _course(
    caption: str, budget: BudgetResult, field: str, decimals: int, points: str = "curve"
) -> Table:
    """Tabulate means at a few places of the first arm's curve, one column per arm."""
    x, label = ("step", "step") if points == "ranks" else figures.x_axis(budget)
    lines = {arm.arm: figures.series(arm.trainings, x, field, points) for arm in budget.arms}
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
    rows = [
        {
            "arm": arm.arm,
            "parameters": f"{arm.params:,}",
            "multiply-adds": count(arm.multiply_adds),
            "cache bytes per token": f"{arm.cache_bytes_per_token:,}",
            "tokens per second": count(show.mean_of(arm, "tok_s") or 0),
            "training": duration(show.mean_of(arm, "seconds") or 0),
            "peak memory": memory(show.mean_of(arm, "peak_memory") or 0),
            "learning rate": f"x {arm.lr_scale:g}",
        }
        for arm in budget.arms
    ]
    caption = "Multiply-adds per token, forward, at full context; time and memory are means"
    return _table(caption, rows)


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
    seeds = plural(len(tunings[0].seeds), "seed")
    caption = "Mean loss by factor of the learning rates, nats per token"
    plot = Plot(
        "tuning",
        "Loss against the learning rate",
        f"Means over {seeds} that play no part in the verdicts; a ring marks the chosen factor. "
        "On a task it is the one with which most seeds solve it.",
        partial(figures.tuning_figure, comparison),
        [_factors(caption, {t.arm: (t.losses, t.best) for t in tunings})],
    )
    again = {t.arm: (t.query_key_losses, t.query_key_lr) for t in tunings if t.query_key_losses}
    caption = "Mean loss by factor of the rate of queries and keys, with the best of all rates"
    tables = [_factors(caption, again)] if again else []
    edges = ", ".join(tuning.arm for tuning in tunings if tuning.at_edge)
    beyond = "a best factor is at the edge of those tried, so a better one may lie beyond it."
    notes = [f"{edges}: {beyond}"] if edges else []
    return Section(heading, plots=[plot], tables=tables, notes=notes)


def _factors(
    caption: str, searches: Mapping[str, tuple[Mapping[float, float | None], float]]
) -> Table:
    """Tabulate searches: losses by factor and the chosen factor, by arm."""
    factors = sorted({factor for losses, _ in searches.values() for factor in losses})
    rows: list[dict[str, str]] = []
    for arm, (losses, chosen) in searches.items():
        shown = {f: "diverged" if x is None else show.number(x, 4) for f, x in losses.items()}
        cells = {f"x {factor:g}": shown.get(factor, "not tried") for factor in factors}
        rows.append({"arm": arm, **cells, "chosen": f"x {chosen:g}"})
    return _table(caption, rows)


def _samples(comparison: Comparison) -> Section:
    """Return texts written by the first seed of every arm, under the first budget."""
    first = comparison.budgets[0]
    written = [(arm.arm, arm.trainings[0].sample) for arm in first.arms]
    # The beginning is enough to see whether a model writes words.
    samples = [(arm, sample[:_SAMPLE_CHARS]) for arm, sample in written if sample.strip()]
    # All arms' first trainings have the same seed.
    seed = first.arms[0].trainings[0].seed
    text = f"What the models of seed {seed} write, greedily, with {show.budget_name(first)}."
    return Section("Samples", text=[text] if samples else [], samples=samples)


def _settings(comparison: Comparison) -> Section:
    """Return the settings of each arm, the shared ones, and the text."""
    arms = {arm.arm: arm.settings for budget in comparison.budgets for arm in budget.arms}
    own = _pairs("What sets the arms apart", arms, "arm", "its own settings")
    shared = _pairs("What all arms share", comparison.settings)
    return Section("Settings", tables=[own, shared, _pairs("The validation text", comparison.text)])


def _pairs(caption: str, values: Mapping[str, Any], *headings: str) -> Table:
    rows = [(key, _value_text(entry)) for key, entry in values.items()]
    return Table(caption, headings or ("name", "value"), rows, wordy=True)


def _value_text(value: Any) -> str:
    """Return a setting, or several on one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} = {_value_text(one)}" for key, one in value.items()) or "none"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


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
