"""A comparison in words, and in a terminal: its answer, its plan and its progress.

Progress is a bar on a terminal, a plain line an event in a pipe.
"""

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from rich import progress
from rich.console import Console, ConsoleOptions
from rich.table import Table
from rich.text import Text

from mlx_attn.comparison import stages, tables
from mlx_attn.comparison.result import MOST_SEEDS, Comparison, Tuning, Verdict
from mlx_attn.comparison.run import ComparisonRun
from mlx_attn.comparison.tables import (
    MISSING,
    UNIT,
    between,
    interval_name,
    number,
    percent,
    places,
    probability,
    signed,
)
from mlx_attn.comparison.trial import Diverged
from mlx_attn.errors import plural, visible
from mlx_attn.ui.terminal import duration, is_live


class Look(NamedTuple):
    """How a word is shown: its colour in a terminal, and colour and marker in a figure."""

    terminal: str
    colour: str
    marker: str


LOOKS = {
    "better": Look("black on green", "#009e73", "<"),
    "worse": Look("white on red", "#d55e00", ">"),
    "the same": Look("black on cyan", "#0072b2", "D"),
    "not known": Look("", "#7f7f7f", "o"),
}
"""By the word of a verdict."""


def question_of(comparison: Comparison) -> str:
    """Return the question that was asked, or one made from the arms."""
    if comparison.question:
        return comparison.question
    arms = comparison.judged
    does = "do" if len(arms) > 1 else "does"
    named = " and ".join(filter(None, (", ".join(arms[:-1]), arms[-1])))
    return f"How {does} {named} compare with {comparison.control}?"


def answer_of(comparison: Comparison, arm: str) -> tuple[str, str]:
    """Return the word on an arm and the sentence that states it."""
    word = comparison.word(arm)
    if why := comparison.diverged.get(arm):
        return word, f"{arm} is {word} than {comparison.control}: {why}."
    sentence = _finding(comparison, arm, comparison.verdicts[arm])
    # On a task the number of seeds that solve it decides; the mean loss is told after it.
    if arm in comparison.solving:
        sentence = f"{_solving_text(comparison, arm)} By the mean loss, {sentence}"
    return word, sentence


def _finding(comparison: Comparison, arm: str, verdict: Verdict) -> str:
    """Return a verdict on the loss with its numbers, as a sentence."""
    control = comparison.control
    if not any(verdict.differences):  # to the last bit
        seeds = plural(len(verdict.differences), "seed")
        exactly = f"{arm} computes exactly what {control} does, with each of {seeds}"
        return f"{exactly}: what was changed has no effect here."
    if verdict.word == "the same":
        claim = f"{arm} is the same as {control} within {_margin_text(comparison, verdict)}"
    elif verdict.word == "not known":
        claim = f"whether {arm} is better or worse than {control} is not known"
    else:
        claim = f"{arm} is {verdict.word} than {control}"
    share = "" if verdict.share is None else f", {percent(verdict.share)} of what the part is worth"
    more = _more_seeds(verdict)
    # The interval is of one arm; the p-value is corrected for all of them.
    if more and verdict.interval and not verdict.interval[0] <= 0 <= verdict.interval[1]:
        more = f"; corrected for all arms, p is {probability(verdict.p_holm)}{more}"
    # "within 0.02 nats per token" has named the unit.
    unit = "" if verdict.word == "the same" else f" {UNIT}"
    return f"{claim}: {_numbers(comparison, verdict, unit)}{share}{more}."


def _more_seeds(verdict: Verdict) -> str:
    """Return the seeds that would decide, as the end of a sentence; "" if these do."""
    if verdict.seeds_needed is None or not verdict.interval:
        return ""
    if verdict.seeds_needed >= MOST_SEEDS:
        # The error of tuning stays, however many there are.
        return f"; fewer than {MOST_SEEDS} seeds would not decide"
    return f"; {verdict.seeds_needed} seeds would decide"


def _margin_text(comparison: Comparison, verdict: Verdict) -> str:
    """Return the margin of a verdict with its unit and its reason."""
    margin = f"{verdict.margin:.3g} {UNIT}"
    if verdict.margin < comparison.delta:
        return f"{margin} (half of the least that {_part(comparison)} worth)"
    share = comparison.delta_tokens
    return f"{margin} ({100 * share:g} % of the tokens)" if share else margin


def _numbers(comparison: Comparison, verdict: Verdict, unit: str = f" {UNIT}") -> str:
    decimals = places(comparison.delta)
    mean, interval = signed(verdict.mean, decimals), between(verdict.interval, decimals)
    seeds = plural(len(verdict.differences), "seed")
    if interval == MISSING:
        return f"{mean}{unit}, {seeds}, {_no_interval(verdict)}"
    return f"{mean}{unit} on average, {interval_name(comparison.confidence)} {interval}, {seeds}"


def _no_interval(verdict: Verdict) -> str:
    return f"too {'few' if len(verdict.differences) == 1 else 'alike'} for an interval"


def _solving_text(comparison: Comparison, arm: str) -> str:
    """Return a sentence on how often an arm solves a task."""
    control, solving = comparison.control, comparison.solving[arm]
    how = {
        "better": f"{arm} solves the task more often than {control}",
        "worse": f"{arm} solves the task less often than {control}",
        "not known": f"whether {arm} or {control} solves the task more often is not known",
    }[solving.word]
    each: list[str] = []
    for one in (solving, comparison.solving[control]):
        median = f" (median {number(one.median_steps, 0)} steps)" if one.median_steps else ""
        each.append(f"{one.solved} of {plural(one.runs, 'seed')}{median}")
    return f"{how}: {' against '.join(each)}, Fisher's p {probability(solving.p_holm)}."


_PARTS = {"scores-off": "queries and keys are", "attention-off": "attention is"}
"""What a reference arm lacks."""


def _part(comparison: Comparison) -> str:
    return _PARTS.get(comparison.reference, "the part is")


def notes_of(comparison: Comparison) -> list[str]:
    """Return sentences that limit the answers: the worth, unequal tokens, the start, a spread."""
    notes: list[str] = []
    if verdict := comparison.verdicts.get(comparison.reference):
        against = f"{comparison.reference} against {comparison.control}"
        part = _part(comparison).capitalize()
        notes.append(f"{part} worth, {against}: {_numbers(comparison, verdict)}.")
    tokens = {arm.arm: arm.trainings[0].tokens for arm in comparison.arms}
    for arm, read in tokens.items():
        if read != (of_control := tokens[comparison.control]):
            notes.append(f"{arm} is trained on {read / of_control:.3g} times the control's tokens.")
    if comparison.settings.get("start") == "zero":
        notes.append(
            "Branches start at zero here (start=zero): from the book's start a missing part may "
            "cost less."
        )
    if edges := [tuning.arm for tuning in comparison.tunings if not tuning.interior]:
        notes.append(
            f"{', '.join(edges)}: the best learning rate is the last one tried; a better one may "
            "lie beyond it."
        )
    judged = {arm: one for arm, one in comparison.verdicts.items() if arm != comparison.reference}
    notes += _doubts(judged)
    if why := comparison.diverged.get(comparison.reference):
        notes.append(f"{comparison.reference} has no result: {why}.")
    return notes


def _doubts(verdicts: Mapping[str, Verdict]) -> list[str]:
    """Return a warning of a plain paired t, whose variance only the pairs themselves show."""
    if all(verdict.lent or not verdict.interval for verdict in verdicts.values()):
        return []
    return [
        "Nothing but these pairs shows how far they spread, neither tuning nor other arms: if one "
        "run in ten of one form fails, better and worse are wrong in 14 to 28 % of comparisons."
    ]


def comparison_parts(comparison: Comparison) -> Iterator[Any]:
    """Yield the answers in bold, the notes, and the tables."""
    for arm in comparison.judged:
        yield Text(visible(answer_of(comparison, arm)[1]), "bold")
    yield from (Text(visible(note)) for note in notes_of(comparison))
    yield ""
    yield from tables_of(comparison)


def tables_of(comparison: Comparison) -> Iterator[Any]:
    """Yield the tables of the answer and of the costs."""
    shown = (tables.solved_of, tables.differences_of, tables.seeds_of)
    for make in (*shown, tables.losses_of, tables.costs_of):
        if (table := make(comparison)).rows:
            yield from (Text(visible(table.caption), "dim"), _Drawn(table), "")


_UNBOUNDED = 10_000  # columns


class _Drawn(NamedTuple):
    """A table on a terminal, or a line for each row if the terminal is too narrow for it."""

    table: tables.Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        drawn, unbounded = _drawn(self.table), options.update(max_width=_UNBOUNDED)
        if console.measure(drawn, options=unbounded).maximum <= options.max_width:
            yield drawn
            return
        for name, *cells in self.table.rows:
            pairs = zip(self.table.headings[1:], cells, strict=True)
            yield Text(visible(f"{name}: {', '.join(map(' '.join, pairs))}"))


def _drawn(table: tables.Table) -> Table:
    drawn = Table(box=None, padding=(0, 2, 0, 0))
    for i, (heading, *cells) in enumerate(zip(table.headings, *table.rows, strict=True)):
        # No wider than the cells below it, so that most tables fit 80 columns.
        lines = textwrap.wrap(heading, max(map(len, cells)), break_long_words=False)
        shown = Text("\n".join(map(visible, lines)))
        drawn.add_column(shown, justify="right" if i else "left", no_wrap=True)
    for row in table.rows:
        words = [Text(visible(cell), LOOKS[cell].terminal if cell in LOOKS else "") for cell in row]
        drawn.add_row(*words)
    return drawn


def verdict_lines(
    control: str, verdicts: Mapping[str, Verdict], confidence: float
) -> Iterator[str]:
    """Yield a line for each verdict on runs of another program, and a doubt about all."""
    for arm, verdict in verdicts.items():
        shown = _no_interval(verdict)
        if verdict.interval:
            low, high = verdict.interval
            shown = f"{interval_name(confidence)} {low:+.4g} to {high:+.4g}"
        pairs = plural(len(verdict.differences), "pair")
        within = f" within {verdict.margin:g}" if verdict.word == "the same" else ""
        answer = f"{arm}, compared with {control}: {verdict.word}{within}, {verdict.mean:+.4g}"
        yield f"{answer} ({shown}, {pairs}){_more_seeds(verdict)}"
    yield from _doubts(verdicts)


class Display(progress.Progress):
    """The progress of a comparison: messages, and events as a bar on a terminal or a line each.

    Quiet, it shows only messages.
    """

    def __init__(self, console: Console, quiet: bool):
        self._events = not quiet
        super().__init__(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=20),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[left]}"),
            console=console,
            transient=True,
            redirect_stdout=False,
            disable=not (self._events and is_live(console)),
        )
        self._task = self.add_task("starting", total=None, left="")

    def message(self, text: str) -> None:
        """Leave one line."""
        self.console.print(Text(text), soft_wrap=True)

    def __call__(self, event: stages.ComparisonEvent) -> None:
        """Move the bar, or leave a line."""
        if isinstance(event, stages.Began) and event.unused:
            self.message(
                f"{plural(event.unused, 'stored training')} made with other code of mlx_attn: not "
                "used, trained again where it is needed"
            )
        if not self.disable and isinstance(event, stages.Began):
            counts = {"total": event.trainings, "completed": event.stored, "left": ""}
            self.update(self._task, description=event.stage, **counts)
        elif not self.disable and isinstance(event, stages.Finished):
            self.update(self._task, advance=1, left=f"{duration(event.seconds_left)} left")
        elif self._events and (line := _event_line(event)):
            self.message(line)


def _event_line(event: stages.ComparisonEvent) -> str:
    """Return an event in one line; "" prints nothing."""
    match event:
        case stages.Began():
            stored = f", {event.stored} of them finished before" if event.stored else ""
            return f"{event.stage}: {event.trainings} trainings{stored}"
        case stages.Finished():
            trial, outcome = event.trial, event.outcome
            diverged = isinstance(outcome, Diverged)
            loss = "diverged" if diverged else f"{outcome.val_loss:.4f} nats per token"
            name = f"{trial.arm}, seed {trial.seed}, learning rates x {trial.lr_scale:g}"
            return f"{name}: {loss}  ({event.left} left, {duration(event.seconds_left)})"
        case Tuning():
            edge = "" if event.interior else " (the last one tried: the best may lie beyond it)"
            return f"{event.arm}: learning rates x {event.best:g}{edge}"
        case _:
            return ""


def plan_rows(run: ComparisonRun) -> list[tuple[str, str]]:
    """Return the plan of a comparison."""
    config, settings = run.config, run.config.settings(run.config.arms[0])
    recipe = settings.training
    muon = f", muon_lr {recipe.muon_lr:g}" if recipe.optimizer == "muon" else ""
    margin = f"what {100 * config.margin.tokens:g} % of the tokens are worth"
    if config.margin.nats:
        margin = f"{config.margin.nats:g} {UNIT}"
    tuning = "none: the rates of the settings"
    if config.tunes:
        arms, seeds = len(config.all_arms), config.seeds_for_tuning
        fewest = arms * len(config.factors) * seeds
        most = fewest + arms * config.extensions * seeds
        tuning = f"{fewest} to {most} trainings" if most > fewest else f"{most} trainings"
        tuning += f", {plural(seeds, 'seed')} a factor"
    return [
        ("arms", ", ".join(arm.name for arm in config.arms)),
        ("control", config.arms[0].name),
        ("reference", config.reference.name if config.reference else "none"),
        ("text", f"{run.corpus.name}, {run.vocab_size} tokens"),
        ("training", f"{settings.preset}, {recipe.steps} steps"),
        ("recipe", f"lr {recipe.lr:g}{muon}, batch_size {recipe.batch_size}"),
        ("tuning", tuning),
        ("judging", f"{config.verdict_trials} trainings, {plural(config.seeds, 'seed')} an arm"),
        ("counts as none", f"less than {margin}"),
        ("at once", f"{run.runner.size} trainings"),
    ]
