"""How a comparison in progress is shown: a live line on a terminal, plain lines in a pipe."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import rich.progress
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from mlx_attn.compare.claim import ArmFinding, Claim, Finding
from mlx_attn.compare.result import Tuning
from mlx_attn.compare.runner import Began, ComparisonEvent, Diverged, Finished, Planned, Tuned
from mlx_attn.compare.wording import between, number, signed
from mlx_attn.ui.terminal import duration, is_live

if TYPE_CHECKING:
    from mlx_attn.compare.comparison import ComparisonRun


class Silent:
    """Shows nothing but messages."""

    def __init__(self, console: Console):
        self.console = console

    def __enter__(self) -> "Silent":
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def __call__(self, event: ComparisonEvent) -> None:
        """Nothing."""

    def message(self, text: str) -> None:
        """One line on stderr that stays."""
        self.console.print(Text(text), soft_wrap=True)


class Mute(Silent):
    """Shows nothing at all: rank 0 does."""

    def message(self, text: str) -> None:
        """Nothing."""


class Lines(Silent):
    """One plain line an event."""

    def __call__(self, event: ComparisonEvent) -> None:
        """One line on stderr."""
        if line := event_line(event):
            self.message(line)


class Bar(Silent):
    """A bar for the stage, and lines that stay for what is settled."""

    def __init__(self, console: Console):
        super().__init__(console)
        self._bar = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(bar_width=20),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TextColumn("{task.fields[left]}"),
            console=console,
            transient=True,
            redirect_stdout=False,
        )
        self._task = self._bar.add_task("starting", total=None, left="")

    def __enter__(self) -> "Bar":
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def __call__(self, event: ComparisonEvent) -> None:
        """Move the bar, or leave a line."""
        match event:
            case Began():
                self._bar.update(
                    self._task,
                    description=event.stage,
                    total=event.trainings,
                    completed=event.stored,
                    left="",
                )
            case Finished():
                left = f"{duration(event.seconds_left)} left"
                self._bar.update(self._task, advance=1, left=left)
            case Tuned() | Planned():
                self.message(event_line(event))


def display_for(console: Console, quiet: bool, rank: int = 0) -> Silent:
    """The display that fits the flags and the terminal; of several ranks, only the first shows."""
    if rank:
        return Mute(console)
    if quiet:
        return Silent(console)
    return Bar(console) if is_live(console) else Lines(console)


def event_line(event: ComparisonEvent) -> str:
    """An event in one line; empty for what needs none."""
    match event:
        case Began():
            stored = f", {event.stored} of them finished before" if event.stored else ""
            return f"{event.stage}: {event.trainings} trainings{stored}"
        case Finished():
            return f"{_finished(event)}  ({event.left} left, {duration(event.seconds_left)})"
        case Tuned():
            return _tuned(event.tuning)
        case Planned():
            return _planned(event)
        case _:
            return ""


def plan_rows(comparing: "ComparisonRun") -> list[tuple[str, str]]:
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


def _planned(event: Planned) -> str:
    plan = f"{event.seeds} seeds, about {event.minutes:.0f} minutes in all"
    if event.resolves is None:
        return plan
    return f"{plan}; a difference of {event.resolves:.3f} nats would be found 4 times out of 5"


def _finished(event: Finished) -> str:
    cell = event.cell
    name = f"{cell.arm}, seed {cell.seed}, learning rates x {cell.lr_scale:g}"
    if isinstance(event.outcome, Diverged):
        return f"{name}: diverged"
    return f"{name}: {event.outcome.val_loss:.4f} nats per token"


def _tuned(tuning: Tuning) -> str:
    what = "learning rates" if tuning.knob == "lr" else "learning rate of S, lr / n_heads"
    edge = "" if tuning.interior else " (the last one tried: the best may lie beyond it)"
    return f"{tuning.arm}: {what} x {tuning.best:g}{edge}"


_STYLES = {"holds": "green", "does not hold": "red", "undecided": "yellow"}


def claims_table(claims: Iterable[Claim]) -> Table:
    """All claims: name, statement, source."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for claim in claims:
        text = Text(claim.statement)
        text.append(f"\n{claim.source}\nhere: {claim.protocol}", "dim")
        table.add_row(Text(claim.name), text)
    return table


def finding_lines(finding: Finding) -> Group:
    """What was found of a claim: the answer, and the numbers behind it."""
    answer = Text(f"{finding.claim}: ")
    answer.append(finding.answer, _STYLES[finding.answer])
    lines: list[Text] = [answer, Text(f"  {finding.statement}", "dim")]
    lines += [Text(f"  {line}") for line in number_lines(finding)]
    return Group(*lines, Text(""))


def number_lines(finding: Finding) -> Iterator[str]:
    """The numbers of a finding, a line each."""
    for budget, arms in finding.arms.items():
        yield f"equal {budget}, {finding.unit}, {finding.seeds} seeds:"
        for arm in arms:
            yield f"  {_arm(arm)}"
    if not finding.arms:
        for name, value in finding.numbers.items():
            yield f"{name}: {value:.4g}"


def _arm(arm: ArmFinding) -> str:
    if arm.refused:
        return f"{arm.arm}: cannot be had: {arm.refused}"
    text = f"{arm.arm}: {number(arm.value, 4)}"
    if arm.verdict is None:
        return text
    verdict = arm.verdict
    interval = between(verdict.interval, 4)
    return f"{text}, {signed(verdict.mean, 4)} ({interval}), {verdict.word}"
