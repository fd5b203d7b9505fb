"""A comparison in a terminal: numbers, the plan, the progress, and what is found of claims.

Progress is a bar on a terminal, a plain line an event in a pipe.
"""

import math
from collections.abc import Iterable, Iterator

import rich.progress
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from mlx_attn.compare import claim, runner
from mlx_attn.compare.comparison import ComparisonRun
from mlx_attn.compare.result import Tuning
from mlx_attn.compare.statistics import MOST_SEEDS, Verdict
from mlx_attn.ui.terminal import duration, is_live

MISSING = "-"
"""Stands for a number that there is not."""

ANSWERS = {"holds": "green", "does not hold": "red", "undecided": "yellow"}
"""Of a claim, with their colours."""


def visible(text: str) -> str:
    """Text of any origin with unprintable characters as their codes."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def places(delta: float) -> int:
    """Decimals that show a tenth of delta, three at least."""
    return max(3, 1 - math.floor(math.log10(delta))) if 0 < delta < 1 else 3


def number(value: float | None, decimals: int) -> str:
    """A number with these decimals, and never -0; a dash for none and nan."""
    if value is None or math.isnan(value):
        return MISSING
    return f"{round(value, decimals) + 0.0:.{decimals}f}"


def signed(value: float | None, decimals: int) -> str:
    """The same with its sign."""
    text = number(value, decimals)
    return text if text == MISSING or text.startswith("-") else f"+{text}"


def between(interval: tuple[float, float] | None, decimals: int) -> str:
    """An interval from one end to the other; a dash where there is none.

    An end that would be rounded to zero gets up to three decimals more: what an interval says is on
    which side of zero it ends.
    """
    ends = interval or (math.nan, math.nan)
    if not all(map(math.isfinite, ends)):
        return MISSING
    wider = range(decimals, decimals + 4)
    return " to ".join(
        signed(end, next((n for n in wider if round(end, n)), decimals)) for end in ends
    )


def probability(p: float | None) -> str:
    """A p-value in three decimals."""
    if p is None or math.isnan(p):
        return MISSING
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def percent(share: float | None) -> str:
    """A share of 1, as 97.3 %."""
    return MISSING if share is None or math.isnan(share) else f"{100 * share:.1f} %"


def seeds_needed(verdict: Verdict) -> str:
    """Seeds that would decide; a dash where it is decided."""
    if verdict.seeds_needed is None:
        return MISSING
    return f"{verdict.seeds_needed}{' or more' if verdict.seeds_needed >= MOST_SEEDS else ''}"


class Display:
    """The progress of a comparison on stderr.

    Args:
        console: Where it is shown.
        events: Whether events are shown: as a bar on a terminal, else a line each.
        messages: Whether messages are.
    """

    def __init__(self, console: Console, events: bool = True, messages: bool = True):
        self.console, self._events, self._messages = console, events, messages
        self._bar = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(bar_width=20),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TextColumn("{task.fields[left]}"),
            console=console,
            transient=True,
            redirect_stdout=False,
        )
        self._live = events and is_live(console)
        self._task = self._bar.add_task("starting", total=None, left="")

    def __enter__(self) -> "Display":
        if self._live:
            self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live:
            self._bar.stop()

    def message(self, text: str) -> None:
        """One line that stays."""
        if self._messages:
            self.console.print(Text(text), soft_wrap=True)

    def __call__(self, event: runner.ComparisonEvent) -> None:
        """Move the bar, or leave a line."""
        if self._live and isinstance(event, runner.Began):
            counts = {"total": event.trainings, "completed": event.stored, "left": ""}
            self._bar.update(self._task, description=event.stage, **counts)
        elif self._live and isinstance(event, runner.Finished):
            self._bar.update(self._task, advance=1, left=f"{duration(event.seconds_left)} left")
        elif self._events and (line := event_line(event)):
            self.message(line)


def display_for(console: Console, quiet: bool, rank: int = 0) -> Display:
    """The display that fits the flags; of several ranks, only the first shows anything."""
    return Display(console, events=not (quiet or rank), messages=not rank)


def event_line(event: runner.ComparisonEvent) -> str:
    """An event in one line; empty for what needs none."""
    match event:
        case runner.Began():
            stored = f", {event.stored} of them finished before" if event.stored else ""
            return f"{event.stage}: {event.trainings} trainings{stored}"
        case runner.Finished():
            return f"{_finished(event)}  ({event.left} left, {duration(event.seconds_left)})"
        case runner.Tuned():
            return _tuned(event.tuning)
        case runner.Planned():
            return _planned(event)
        case _:
            return ""


def plan_rows(comparing: ComparisonRun) -> list[tuple[str, str]]:
    """What a comparison would do, before it does it."""
    protocol = comparing.protocol
    settings = protocol.settings(protocol.arms[0])
    rates = len(protocol.scales) * protocol.tuning_seeds * len(protocol.arms)
    seeds = str(protocol.seeds) if protocol.seeds else f"what {protocol.minutes:g} minutes allow"
    tuning = "at least " if protocol.tunes else ""
    return [
        ("arms", ", ".join(arm.name for arm in protocol.arms)),
        ("control", protocol.arms[0].name),
        ("text", f"{comparing.corpus.name}, {comparing.vocab_size} tokens"),
        ("training", f"{settings.preset}, {settings.training.steps} steps"),
        ("tuning", f"{tuning}{rates if protocol.tunes else 0} trainings"),
        ("seeds", seeds),
        ("equal", ", ".join(protocol.budgets)),
        ("counts as none", f"less than {protocol.delta:g} nats per token"),
        ("at once", f"{comparing.crew.size} processes, trainings {comparing.crew.way}"),
    ]


def _planned(event: runner.Planned) -> str:
    plan = f"{event.seeds} seeds, about {event.minutes:.0f} minutes in all"
    if event.resolves is None:
        return plan
    return f"{plan}; a difference of {event.resolves:.3f} nats would be found 4 times out of 5"


def _finished(event: runner.Finished) -> str:
    cell = event.cell
    name = f"{cell.arm}, seed {cell.seed}, learning rates x {cell.lr_scale:g}"
    if isinstance(event.outcome, runner.Diverged):
        return f"{name}: diverged"
    return f"{name}: {event.outcome.val_loss:.4f} nats per token"


def _tuned(tuning: Tuning) -> str:
    what = "learning rates" if tuning.knob == "lr" else "learning rate of S, lr / n_heads"
    edge = "" if tuning.interior else " (the last one tried: the best may lie beyond it)"
    return f"{tuning.arm}: {what} x {tuning.best:g}{edge}"


def claims_table(claims: Iterable[claim.Claim]) -> Table:
    """All claims: name, statement, source."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for one in claims:
        text = Text(one.statement)
        text.append(f"\n{one.source}\nhere: {one.protocol}", "dim")
        table.add_row(Text(one.name), text)
    return table


def finding_lines(finding: claim.Finding) -> Group:
    """What was found of a claim: the answer, and the numbers behind it."""
    answer = Text(f"{finding.claim}: ")
    answer.append(finding.answer, ANSWERS[finding.answer])
    lines: list[Text] = [answer, Text(f"  {finding.statement}", "dim")]
    lines += [Text(f"  {line}") for line in number_lines(finding)]
    return Group(*lines, Text(""))


def number_lines(finding: claim.Finding) -> Iterator[str]:
    """The numbers of a finding, a line each."""
    for budget, arms in finding.arms.items():
        yield f"equal {budget}, {finding.unit}, {finding.seeds} seeds:"
        for arm in arms:
            yield f"  {_arm(arm)}"
    if not finding.arms:
        for name, value in finding.numbers.items():
            yield f"{name}: {value:.4g}"


def _arm(arm: claim.ArmFinding) -> str:
    if arm.refused:
        return f"{arm.arm}: cannot be had: {arm.refused}"
    text = f"{arm.arm}: {number(arm.value, 4)}"
    if arm.verdict is None:
        return text
    verdict = arm.verdict
    interval = between(verdict.interval, 4)
    return f"{text}, {signed(verdict.mean, 4)} ({interval}), {verdict.word}"
