"""What a report is made of, whether it becomes a page or Markdown."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from mlx_attn.compare.figures import (
    Marks,
    Series,
    abilities,
    abilities_figure,
    ability_values,
    accuracy_figure,
    cost,
    costs_figure,
    curves,
    curves_figure,
    forest_figure,
    marks_of,
    place_of,
    rank_series,
    ranks_figure,
    tuning_figure,
)
from mlx_attn.compare.result import ArmResult, BudgetResult, Comparison, TrialResult
from mlx_attn.compare.statistics import TimeToSolve, holm, log_rank, solve_rate
from mlx_attn.compare.wording import (
    MISSING,
    between,
    budget_name,
    finding,
    mean,
    noise_sentences,
    number,
    percent,
    places,
    probability,
    seeds_needed,
    shown,
    signed,
    spread,
    values,
)
from mlx_attn.files import write_text
from mlx_attn.ui.plots import figure_for_page, markup, render, save_figure
from mlx_attn.ui.terminal import count, duration, memory, plural

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTable:
    """Rows of text; the first cell of a row names it.

    Attributes:
        caption: What the rows are.
        headings: Of the columns.
        rows: As many cells each as there are headings.
        wordy: Whether its cells are words, which may wrap, rather than numbers.
    """

    caption: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    wordy: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A figure.

    Attributes:
        name: Of its file, without the ending.
        title: What is shown.
        text: How to read it.
        draw: Makes the figure.
    """

    name: str
    title: str
    text: str
    draw: Callable[[], "Figure"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What was found of one arm.

    Attributes:
        word: The verdict.
        sentences: The finding, and what the other budgets say of it.
    """

    word: str
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Note:
    """Something that a reader must not overlook."""

    text: str


@dataclass(frozen=True, slots=True)
class Code:
    """Text to be copied, such as a command."""

    text: str


@dataclass(frozen=True, slots=True)
class Writing:
    """What a model wrote, side by side with what others did."""

    by: str
    text: str


Block = str | ReportTable | Plot | Note | Code | tuple[Answer, ...] | tuple[Writing, ...]
"""A paragraph, or one of the above."""


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with what stands below it."""

    heading: str
    blocks: tuple[Block, ...]
    parts: tuple["Section", ...] = ()

    def all_blocks(self) -> tuple[Block, ...]:
        """Its own blocks and those of its parts, in order."""
        return self.blocks + tuple(block for part in self.parts for block in part.all_blocks())


@dataclass(frozen=True, slots=True)
class Report:
    """A whole report.

    Attributes:
        title: Its name.
        question: What was asked, or what was compared.
        sections: The answer first.
    """

    title: str
    question: str
    sections: tuple[Section, ...]

    def plots(self) -> list[Plot]:
        """All figures, in order."""
        blocks = (block for section in self.sections for block in section.all_blocks())
        return [block for block in blocks if isinstance(block, Plot)]


SOLVED = 0.99
"""Share of the scored tokens predicted right from which a task counts as solved."""


def solving_section(budget: BudgetResult, comparison: Comparison) -> Section:
    """A row per arm; empty where no accuracy was measured."""
    attempts = {arm.arm: _attempts(arm) for arm in budget.arms}
    if not all(attempts.values()):
        return Section("Solved", ())
    later = {arm: tried for arm, tried in attempts.items() if arm != comparison.control}
    control = attempts[budget.arms[0].arm]
    p_values = holm({arm: log_rank(tried, control) for arm, tried in later.items()})
    table = ReportTable(
        caption=f"Seeds that predicted {SOLVED:.0%} of the tokens right, and how soon; log-rank "
        f"test against {comparison.control}",
        headings=(
            "arm",
            "solved",
            f"{100 * comparison.confidence:g} % interval",
            "median steps",
            "Holm p",
        ),
        rows=tuple(
            _solving_row(arm, tried, comparison.confidence, p_values.get(arm))
            for arm, tried in attempts.items()
        ),
    )
    return Section("Solved", (table,))


def _attempts(arm: ArmResult) -> list[TimeToSolve]:
    """When each seed solved the task; none where a seed has no accuracy."""
    curves = [[p for p in training.curve if p.accuracy is not None] for training in arm.trainings]
    return [_attempt(training) for training in arm.trainings] if all(curves) else []


def _attempt(training: TrialResult) -> TimeToSolve:
    right = [p.step for p in training.curve if p.accuracy is not None and p.accuracy >= SOLVED]
    return TimeToSolve(steps=min(right, default=training.steps), solved=bool(right))


def _solving_row(
    arm: str, attempts: list[TimeToSolve], confidence: float, p_value: float | None
) -> tuple[str, ...]:
    rate = solve_rate(attempts, confidence)
    low, high = rate.interval
    steps = MISSING if rate.median_steps is None else f"{rate.median_steps:,.0f}"
    interval = f"{percent(low)} to {percent(high)}"
    return (arm, f"{rate.solved} of {rate.runs}", interval, steps, probability(p_value))


WORDS = (
    "Equivalent: the difference is shown to be smaller than what counts as one, zero or not. "
    "Better and worse: it is shown not to be zero. Undecided: these seeds show neither."
)


def answer_section(comparison: Comparison) -> Section:
    """What was found of every arm, and all verdicts at a glance."""
    answers = tuple(answer(comparison, arm) for arm in judged(comparison))
    if not answers:
        return Section("Answer", ("There is nothing to compare with: only one arm was trained.",))
    several = len(comparison.budgets) > 1
    glance = (glance_table(comparison),) if several else ()
    return Section("Answer", (answers, WORDS, *glance))


def judged(comparison: Comparison) -> list[str]:
    """Arms with a verdict under some budget, in order."""
    return list(dict.fromkeys(arm for budget in comparison.budgets for arm in budget.verdicts))


def answer(comparison: Comparison, arm: str) -> Answer:
    """The verdict under the first budget that has one, then what the others say."""
    first, *others = [b for b in comparison.budgets if arm in b.verdicts]
    word = first.verdicts[arm].word
    where = f"With {budget_name(first)}, " if len(comparison.budgets) > 1 else ""
    sentence = f"{where}{finding(arm, first.verdicts[arm], comparison)}"
    return Answer(word, (sentence, *_elsewhere(comparison, arm, others)))


def glance_table(comparison: Comparison) -> ReportTable:
    """A row per arm, a column per budget: verdict and mean difference."""
    return ReportTable(
        caption=f"Verdicts, and mean differences to {comparison.control} in nats per token",
        headings=("arm", *(budget_name(budget) for budget in comparison.budgets)),
        rows=tuple(
            (arm, *(_cell(budget, arm, comparison.delta) for budget in comparison.budgets))
            for arm in judged(comparison)
        ),
    )


def noise_section(comparison: Comparison) -> Section:
    """What the control differs by from itself."""
    noise = comparison.noise
    if noise is None:
        return Section("Noise", ("The control was not compared with itself.",))
    text = noise_sentences(noise, comparison)
    if noise.verdict.word in ("better", "worse"):
        warning = (
            f"{comparison.control} differs from itself: seeds vary more than these intervals "
            "allow for, so take the verdicts with care."
        )
        return Section("Noise", (text, Note(warning)))
    return Section("Noise", (text,))


def _elsewhere(comparison: Comparison, arm: str, others: list[BudgetResult]) -> Iterator[str]:
    """What other budgets say of an arm: a sentence for each verdict."""
    said: dict[str, list[str]] = {}
    for budget in others:
        verdict = budget.verdicts[arm]
        difference = signed(verdict.mean, places(comparison.delta))
        said.setdefault(verdict.word, []).append(f"with {budget_name(budget)} ({difference})")
    for budget in comparison.budgets:
        if arm in budget.refused:
            said.setdefault("not to be had", []).append(f"with {budget_name(budget)}")
    for word, where in said.items():
        yield f"{word.capitalize()} {' and '.join(where)}."


def _cell(budget: BudgetResult, arm: str, delta: float) -> str:
    if arm not in budget.verdicts:
        return "cannot be had" if arm in budget.refused else MISSING
    verdict = budget.verdicts[arm]
    return f"{verdict.word} {signed(verdict.mean, places(delta))}"


RANGE = "Lines are means over seeds, bands reach from the lowest seed to the highest."
_SHOWN = 9
"""Rows of a table about the course of a training."""


def budget_section(budget: BudgetResult, comparison: Comparison, marks: Marks) -> Section:
    """All that was measured under one budget."""
    refused = tuple(f"{arm} cannot be had: {why}" for arm, why in budget.refused.items())
    heading = budget_name(budget).capitalize()
    if not budget.arms:
        return Section(heading, refused)
    parts = (
        _differences(budget, comparison),
        _losses(budget, comparison),
        solving_section(budget, comparison),
        _through_training(budget, comparison, marks),
        _costs(budget, marks),
        _abilities(budget, marks),
        _ranks(budget, marks),
    )
    return Section(heading, refused, tuple(part for part in parts if part.blocks))


def _differences(budget: BudgetResult, comparison: Comparison) -> Section:
    control = comparison.control
    if not budget.verdicts:
        return Section("Differences", ())
    plot = Plot(
        name=f"forest-{budget.budget}",
        title=f"Differences of loss to {control}",
        text=f"Small dots are seeds, paired with {control}'s; the large mark is their mean, its "
        f"line the {100 * comparison.confidence:g} % interval. Below zero an arm is better than "
        f"{control}; within the band a difference counts as none.",
        draw=lambda: forest_figure(budget, comparison.delta),
    )
    return Section("Differences", (plot, differences_table(budget, comparison)))


def differences_table(budget: BudgetResult, comparison: Comparison) -> ReportTable:
    """A row per verdict."""
    decimals = places(comparison.delta)
    interval = f"{100 * comparison.confidence:g} % interval"
    names = ("arm", "difference", interval, "verdict", "Holm p", "equivalence p")
    return ReportTable(
        caption=f"Loss less that of {comparison.control}, in nats per token, paired by seed",
        headings=(*names, "bootstrap interval", "could find", "seeds needed"),
        rows=tuple(
            (
                arm,
                signed(verdict.mean, decimals),
                between(verdict.interval, decimals),
                verdict.word,
                probability(verdict.p_holm),
                probability(verdict.p_equivalence),
                between(verdict.bootstrap, decimals),
                number(verdict.resolves, decimals),
                seeds_needed(verdict),
            )
            for arm, verdict in budget.verdicts.items()
        ),
    )


def _losses(budget: BudgetResult, comparison: Comparison) -> Section:
    """A row per arm; columns that no arm has are left out."""
    decimals = max(4, places(comparison.delta) + 1)
    columns: dict[str, Callable[[ArmResult], str]] = {
        "seeds": lambda arm: str(len(arm.trainings)),
        "loss": lambda arm: number(mean(values(arm, "val_loss")), decimals),
        "between seeds": lambda arm: number(spread(values(arm, "val_loss")), decimals),
        "bits per byte": lambda arm: number(mean(values(arm, "bits_per_byte")), decimals),
        "above floor": lambda arm: number(mean(values(arm, "above_floor")), decimals),
        "accuracy": lambda arm: percent(mean(values(arm, "accuracy"))),
    }
    cells = {name: [cell(arm) for arm in budget.arms] for name, cell in columns.items()}
    kept = {name: column for name, column in cells.items() if set(column) != {MISSING}}
    table = ReportTable(
        caption="Mean validation loss in nats per token, and its standard deviation between seeds",
        headings=("arm", *kept),
        rows=tuple(zip([arm.arm for arm in budget.arms], *kept.values(), strict=True)),
    )
    return Section("Losses", (table,))


def _through_training(budget: BudgetResult, comparison: Comparison, marks: Marks) -> Section:
    place, label = place_of(budget)
    lines = {arm.arm: curves(arm, place, lambda point: point.val_loss) for arm in budget.arms}
    if not any(lines.values()):
        return Section("Through training", ())
    plot = Plot(
        name=f"curves-{budget.budget}",
        title="Validation loss through training",
        text=f"{RANGE} Above the loss, below its paired difference to {comparison.control}, with "
        "the band that counts as none. The first losses lie above the figure.",
        draw=lambda: curves_figure(budget, marks, comparison.delta),
    )
    loss = _course("Mean validation loss, nats per token", label, lines, 4)
    shares = {arm.arm: curves(arm, place, lambda point: point.accuracy) for arm in budget.arms}
    return Section("Through training", (plot, loss, *_accuracy(budget, label, shares, marks)))


def _accuracy(
    budget: BudgetResult, label: str, shares: dict[str, Series | None], marks: Marks
) -> Iterator[Block]:
    if any(shares.values()):
        yield Plot(
            name=f"accuracy-{budget.budget}",
            title="Share of tokens predicted right through training",
            text=RANGE,
            draw=lambda: accuracy_figure(budget, marks),
        )
        yield _course("Mean share predicted right", label, shares, 3)


def _course(
    caption: str, label: str, lines: dict[str, Series | None], decimals: int
) -> ReportTable:
    """Means at a few places of the first arm's curve, a column per arm."""
    known = {arm: line for arm, line in lines.items() if line}
    at = next(iter(known.values())).at
    rows = at[np.unique(np.linspace(0, len(at) - 1, _SHOWN).astype(int))]
    columns = [_at(line, rows, decimals) for line in known.values()]
    return ReportTable(
        caption=caption,
        headings=(label, *known),
        rows=tuple(
            zip(
                [f"{value:,.4g}" if value < 1000 else f"{value:,.0f}" for value in rows],
                *columns,
                strict=True,
            )
        ),
    )


def _at(line: Series, places: np.ndarray, decimals: int) -> list[str]:
    found = np.interp(places, line.at, line.mean, left=np.nan, right=np.nan)
    return [number(value, decimals) for value in found]


def _costs(budget: BudgetResult, marks: Marks) -> Section:
    plot = Plot(
        name=f"costs-{budget.budget}",
        title="Loss against what it costs",
        text="Lower is better, further left is cheaper; bars reach from the lowest seed to the "
        "highest.",
        draw=lambda: costs_figure(budget, marks),
    )
    return Section("Costs", (plot, costs_table(budget)))


def costs_table(budget: BudgetResult) -> ReportTable:
    """A row per arm."""
    sizes = ("arm", "parameters", "multiply-adds", "cache bytes per token")
    return ReportTable(
        caption="Multiply-adds per token, forward, at full context; time and memory are means",
        headings=(*sizes, "tokens per second", "training", "peak memory", "learning rate"),
        rows=tuple(
            (
                arm.arm,
                f"{arm.params:,}",
                count(arm.multiply_adds),
                f"{arm.cache_bytes_per_token:,}",
                count(mean(values(arm, "tok_s")) or 0),
                duration(cost(arm, "seconds")),
                memory(mean(values(arm, "peak_memory")) or 0),
                f"x {arm.lr_scale:g}",
            )
            for arm in budget.arms
        ),
    )


def _abilities(budget: BudgetResult, marks: Marks) -> Section:
    names = abilities(budget)
    if not names:
        return Section("Abilities", ())
    plot = Plot(
        name=f"abilities-{budget.budget}",
        title="What each ability adds to the loss",
        text="In bits per byte above the exact floor of the text; bars reach from the lowest seed "
        "to the highest.",
        draw=lambda: abilities_figure(budget, marks),
    )
    table = ReportTable(
        caption="Mean contribution to the loss above the floor, bits per byte",
        headings=("arm", *names),
        rows=tuple(
            (arm.arm, *(number(part, 4) for part in ability_values(arm, names).mean(axis=0)))
            for arm in budget.arms
        ),
    )
    return Section("Abilities", (plot, table))


def _ranks(budget: BudgetResult, marks: Marks) -> Section:
    scores = {arm.arm: rank_series(arm, lambda ranks: ranks.scores) for arm in budget.arms}
    if not any(scores.values()):
        return Section("Rank", ())
    outputs = {arm.arm: rank_series(arm, lambda r: r.value_outputs) for arm in budget.arms}
    plot = Plot(
        name=f"ranks-{budget.budget}",
        title="Effective rank of the heads' matrices through training",
        text=f"S makes the scores, VO is what a head moves x by. {RANGE}",
        draw=lambda: ranks_figure(budget, marks),
    )
    tables = (_course("Effective rank of S, mean", "step", scores, 2),)
    tables += (_course("Effective rank of VO, mean", "step", outputs, 2),)
    return Section("Rank", (plot, *tables))


WRITTEN = 700
"""Characters of a sample that are shown."""


def tuning_section(comparison: Comparison, marks: Marks) -> Section:
    """How every arm's learning rate was found."""
    if not comparison.tunings:
        return Section("Learning rates", ("Every arm has the learning rates of the settings.",))
    seeds = plural(len(comparison.tunings[0].seeds), "seed")
    plot = Plot(
        name="tuning",
        title="Loss against the learning rate",
        text=f"Means over {seeds} that play no part in the verdicts; a ring marks the factor that "
        "was chosen.",
        draw=lambda: tuning_figure(comparison.tunings, marks),
    )
    edges = [tuning.arm for tuning in comparison.tunings if not tuning.interior]
    notes = [
        Note(
            f"{', '.join(edges)}: the best factor is at the edge of those tried, so a better "
            "one may lie beyond it."
        )
    ]
    return Section("Learning rates", (plot, tuning_table(comparison), *(notes if edges else ())))


def tuning_table(comparison: Comparison) -> ReportTable:
    """A row per arm, a column per factor."""
    factors = sorted({factor for tuning in comparison.tunings for factor in tuning.losses})
    return ReportTable(
        caption="Mean loss for each factor of the learning rates, nats per token",
        headings=("arm", *(f"x {factor:g}" for factor in factors), "chosen"),
        rows=tuple(
            (
                tuning.arm,
                *(_tried(tuning.losses, factor) for factor in factors),
                f"x {tuning.best:g}",
            )
            for tuning in comparison.tunings
        ),
    )


def samples_section(comparison: Comparison) -> Section:
    """What the first seed of every arm writes, under the first budget."""
    first = next((budget for budget in comparison.budgets if budget.arms), None)
    arms = [arm for arm in first.arms if arm.trainings] if first else []
    written = tuple(
        Writing(arm.arm, arm.trainings[0].sample[:WRITTEN])
        for arm in arms
        if arm.trainings[0].sample.strip()
    )
    if not (first and written):
        return Section("Samples", ())
    seed = arms[0].trainings[0].seed
    text = f"What the models of seed {seed} write, greedily, with {budget_name(first)}."
    return Section("Samples", (text, written))


def settings_section(comparison: Comparison) -> Section:
    """What all arms share, what sets each apart, and the text."""
    arms = {arm.arm: arm.settings for b in comparison.budgets for arm in b.arms}
    rows = tuple((name, _flat(settings)) for name, settings in arms.items())
    blocks: list[Block] = [_pairs("What all arms share", comparison.settings)]
    if rows:
        headings = ("arm", "settings of its own")
        blocks.insert(
            0,
            ReportTable(
                caption="What sets the arms apart", headings=headings, rows=rows, wordy=True
            ),
        )
    return Section("Settings", (*blocks, _pairs("The validation text", comparison.text)))


def reproduction_section(comparison: Comparison) -> Section:
    """The command, the versions, and how long it took."""
    took = f"All trainings together took {duration(comparison.seconds)}."
    versions = _pairs("Versions and machine", comparison.versions)
    return Section("Reproduce it", (Code(comparison.command), took, versions))


def _tried(losses: Mapping[float, float | None], factor: float) -> str:
    if factor not in losses:
        return "not tried"
    loss = losses[factor]
    return "diverged" if loss is None else number(loss, 4)


def _pairs(caption: str, values: Mapping[str, Any]) -> ReportTable:
    rows = tuple((name, _text(value)) for name, value in values.items())
    return ReportTable(caption=caption, headings=("name", "value"), rows=rows, wordy=True)


def _flat(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {_text(value)}" for key, value in settings.items()) or "none"


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        return _flat(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


_GROUP = re.compile(r'<g id="[^"]*">')
_METADATA = re.compile(r"<metadata>.*?</metadata>\s*", re.DOTALL)


def as_html(report: Report) -> str:
    """The page as text.

    Raises:
        RunError: jinja2 or matplotlib is not installed.
    """
    return render(
        "report",
        report=report,
        abreast=_abreast,
        kind=_kind,
        drawn=_drawn,
        shown=shown,
        slug=_slug,
    )


def _abreast(blocks: Sequence[Block]) -> list[tuple[Plot | None, list[Block]]]:
    """Every figure with what is said beside it; what comes before the first has none."""
    groups: list[tuple[Plot | None, list[Block]]] = [(None, [])]
    for block in blocks:
        if isinstance(block, Plot):
            groups.append((block, []))
        else:
            groups[-1][1].append(block)
    return [group for group in groups if any(group)]


def _kind(block: Any) -> str:
    """Which part of the template shows a block."""
    if isinstance(block, tuple):
        return f"{type(block[0]).__name__.lower()}s"
    return type(block).__name__.removeprefix("Report").lower()


def _drawn(plot: Plot) -> "Markup":
    """A figure without what only an editor of figures needs; names would repeat within a page."""
    svg = _METADATA.sub("", figure_for_page(plot.draw))
    return markup(_GROUP.sub("<g>", svg))


def _slug(*sections: Section) -> str:
    """What an address calls a section."""
    headings = " ".join(section.heading for section in sections)
    return re.sub(r"\W+", "-", headings.lower()).strip("-")


_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~])")


def as_markdown(report: Report) -> str:
    """The report as Markdown, in which nothing that it quotes is markup."""
    lines = [f"# {escaped(report.title)}"]
    if report.question:
        lines.append(escaped(report.question))
    for section in report.sections:
        lines += _section(section, 2)
    return "\n\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Text on one line, without markup."""
    return _SPECIAL.sub(r"\\\1", " ".join(shown(text).split()))


def _section(section: Section, level: int) -> Iterator[str]:
    yield f"{'#' * level} {escaped(section.heading)}"
    for block in section.blocks:
        yield from _block(block)
    for part in section.parts:
        yield from _section(part, level + 1)


def _block(block: Block) -> Iterator[str]:
    match block:
        case str() | Note():
            yield escaped(block if isinstance(block, str) else block.text)
        case ReportTable():
            yield f"{escaped(block.caption)}:"
            yield _table(block)
        case Code():
            yield _fenced(block.text)
        case tuple():
            yield from (_item(item) for item in block)
        case Plot():
            return


def _item(item: Answer | Writing) -> str:
    if isinstance(item, Writing):
        return f"**{escaped(item.by)}**\n\n{_fenced(item.text)}"
    return f"- **{escaped(item.word)}**: {escaped(' '.join(item.sentences))}"


def _table(table: ReportTable) -> str:
    right = "|".join(["---"] + ["---:"] * (len(table.headings) - 1))
    rows = [_row(table.headings), f"|{right}|", *map(_row, table.rows)]
    return "\n".join(rows)


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(map(escaped, cells))} |"


def _fenced(text: str) -> str:
    """A block of code whose fence is longer than any in the text."""
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{shown(text)}\n{fence}"


_STYLES = {"better": "green", "worse": "red", "equivalent": "cyan"}


def summary_lines(comparison: Comparison) -> list[str]:
    """The answer for every arm, one line each."""
    found = [answer(comparison, arm) for arm in judged(comparison)]
    return [shown(" ".join(one.sentences)) for one in found]


def verdict_tables(comparison: Comparison) -> Group:
    """A table per budget: every arm's loss, difference, interval and verdict; a line between."""
    found = [
        (_terminal_table(budget, comparison), *_refused(budget), "")
        for budget in comparison.budgets
    ]
    return Group(*(line for lines in found for line in lines))


def _terminal_table(budget: BudgetResult, comparison: Comparison) -> Table:
    title = f"{budget_name(budget)}: nats per token, differences to {shown(comparison.control)}"
    table = Table(title=title, title_justify="left", title_style="", box=None, padding=(0, 2, 0, 0))
    table.add_column("arm", overflow="fold")
    interval = f"{100 * comparison.confidence:g} % interval"
    for heading in ("loss", "difference", interval):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for arm in budget.arms:
        table.add_row(Text(shown(arm.arm)), *_cells(arm, budget, places(comparison.delta)))
    return table


def _refused(budget: BudgetResult) -> Iterator[Text]:
    for arm, why in budget.refused.items():
        yield Text(f"{shown(arm)} cannot be had: {shown(why)}", "dim")


def _cells(arm: ArmResult, budget: BudgetResult, decimals: int) -> list[str | Text]:
    loss = number(mean(values(arm, "val_loss")), max(4, decimals))
    verdict = budget.verdicts.get(arm.arm)
    if verdict is None:
        return [loss, MISSING, MISSING, MISSING]
    word = Text(verdict.word, _STYLES.get(verdict.word, ""))
    interval = between(verdict.interval, decimals)
    return [loss, signed(verdict.mean, decimals), interval, word]


HTML, MARKDOWN = "report.html", "report.md"


def report_of(comparison: Comparison) -> Report:
    """The report of a comparison: the answer first, what it rests on last."""
    marks = marks_of(comparison)
    sections = (
        answer_section(comparison),
        noise_section(comparison),
        *(budget_section(budget, comparison, marks) for budget in comparison.budgets),
        tuning_section(comparison, marks),
        samples_section(comparison),
        settings_section(comparison),
        reproduction_section(comparison),
    )
    kept = tuple(section for section in sections if section.blocks or section.parts)
    return Report(comparison.name, comparison.question, kept)


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
