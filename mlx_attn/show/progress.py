"""How a training is shown: a live line on a terminal, plain lines in a pipe, JSON for programs.

A display is a context manager that takes reports. Progress and messages go to stderr; the result,
which is all that `conclude` shows, and the reports as JSON go to stdout.
"""

import json
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

import rich.progress
from rich.console import Console
from rich.table import Column
from rich.text import Text

from mlx_attn.show.means import spread_text
from mlx_attn.show.quantities import count, duration, memory
from mlx_attn.show.repl.screen import printable
from mlx_attn.show.terminal import is_live
from mlx_attn.training.reports import Ended, Evaluated, Report, Started, Stepped, as_record

BAR = 20
"""Columns of the bar."""

WIDE_ENOUGH_FOR_A_BAR = 70


@runtime_checkable
class Display(AbstractContextManager["Display"], Protocol):
    """Takes reports while the context lasts."""

    def __call__(self, report: Report) -> None:
        """Show one report."""
        ...

    def message(self, text: str) -> None:
        """Show one line that stays."""
        ...

    def conclude(self, report: Ended, sample: str) -> None:
        """Show the result of a training and what the model writes now."""
        ...


class Quiet:
    """Shows no progress; the result is the run's directory, for a script."""

    def __init__(self, console: Console):
        self.console = console

    def __enter__(self) -> "Quiet":
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def __call__(self, report: Report) -> None:
        """Nothing."""

    def message(self, text: str) -> None:
        """A line on stderr, above the bar where there is one."""
        self.console.print(Text(text), soft_wrap=True)

    def conclude(self, report: Ended, sample: str) -> None:
        """Where the run is."""
        print(report.run)


class Silent(Quiet):
    """Shows nothing at all: for every rank but the first."""

    def message(self, text: str) -> None:
        """Nothing."""

    def conclude(self, report: Ended, sample: str) -> None:
        """Nothing."""


class Json(Quiet):
    """One JSON object a report on stdout; the last of them is the result."""

    def __call__(self, report: Report) -> None:
        """One object, flushed."""
        print(json.dumps(as_record(report), allow_nan=False), flush=True)

    def conclude(self, report: Ended, sample: str) -> None:
        """Nothing more."""


class Plain(Quiet):
    """One plain line a report, for a pipe or a file."""

    def __call__(self, report: Report) -> None:
        """One line on stderr."""
        if isinstance(report, Stepped):
            self.message(step_line(report))
        elif isinstance(report, Evaluated):
            self.message(evaluation_line(report))

    def conclude(self, report: Ended, sample: str) -> None:
        """The loss, a sample, and what to do next."""
        for line in closing_lines(report):
            print(line)
        if sample:
            print(f"it writes: {printable(sample.strip())}")
        if report.run:
            print(f"talk to it:  mlx-attn repl {report.run}")


class Live(Plain):
    """A bar with the latest figures, and a line that stays for every validation."""

    def __init__(self, console: Console):
        super().__init__(console)
        text = rich.progress.TextColumn(
            "{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis")
        )
        self._has_bar = console.width >= WIDE_ENOUGH_FOR_A_BAR
        columns = [rich.progress.BarColumn(bar_width=BAR)] if self._has_bar else []
        # Results on stdout are not the bar's to redirect: stdout may be a file.
        self._bar = rich.progress.Progress(
            *columns, text, console=console, transient=True, redirect_stdout=False
        )
        self._task = self._bar.add_task("starting", total=None)
        self._val_loss = ""

    def __enter__(self) -> "Live":
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def __call__(self, report: Report) -> None:
        """Move the bar, or leave a line."""
        if isinstance(report, Started):
            self._bar.update(self._task, total=report.steps or None, completed=report.step)
        elif isinstance(report, Stepped):
            total = report.seconds + report.seconds_left
            room = self.console.width - (BAR + 2 if self._has_bar else 1)
            line = step_line(report, self._val_loss, room)
            self._bar.update(self._task, total=total, completed=report.seconds, description=line)
        elif isinstance(report, Evaluated):
            self._val_loss = f"{report.val_loss:.3f}"
            self.message(evaluation_line(report))


def display_for(json_lines: bool, quiet: bool, console: Console) -> Display:
    """The display that fits the flags and the terminal."""
    if json_lines:
        return Json(console)
    if quiet:
        return Quiet(console)
    return Live(console) if is_live(console) else Plain(console)


def step_line(report: Stepped, val_loss: str = "", width: int = 200) -> str:
    """Where the training stands, in one line that leaves out what does not fit."""
    parts = {
        "step": f"step {report.step}" + (f"/{report.steps}" if report.steps else ""),
        "loss": f"loss {report.loss:.3f}{spread_text(report, 3)}",
        "val": f"val {val_loss}" if val_loss else "",
        "speed": f"{count(report.tok_s)} tok/s",
        "memory": memory(report.peak_memory),
        "left": f"{duration(report.seconds_left)} left",
    }
    for least in ("", "memory", "speed", "val", "left"):
        parts.pop(least, None)
        line = "  ".join(part for part in parts.values() if part)
        if len(line) <= width:
            break
    return line


def evaluation_line(report: Evaluated) -> str:
    """A validation, in one line."""
    floor = "" if report.above_floor is None else f" ({report.above_floor:.3f} above the floor)"
    best = "  best so far" if report.best else ""
    return (
        f"step {report.step}  val loss {report.val_loss:.4f}{spread_text(report, 4)} nats per "
        f"token{_bits('  ', report)}{floor}{_accuracy('  ', report)}{best}"
    )


def _bits(before: str, report: Evaluated | Ended) -> str:
    """The loss per byte, of a text."""
    bits = report.bits_per_byte
    return "" if bits is None else f"{before}{bits:.4f} bits per byte"


def _accuracy(before: str, report: Evaluated | Ended) -> str:
    """The share of right answers, of a task."""
    accuracy = report.accuracy
    return "" if accuracy is None else f"{before}{accuracy:.1%} of answers right"


def closing_lines(report: Ended) -> list[str]:
    """What to know when the training is over."""
    if report.val_loss is None:
        return [f"{report.steps} steps, no validation yet"]
    lines = [
        f"best val loss {report.val_loss:.4f} nats per token{_bits(', ', report)}"
        f"{_accuracy(', ', report)}; {report.steps} steps, {count(report.tokens)} tokens, "
        f"{duration(report.seconds)}, {count(report.tok_s)} tok/s, {memory(report.peak_memory)}"
    ]
    if report.above_floor is not None:
        shares = ", ".join(f"{name} {share:.3f}" for name, share in report.abilities.items())
        unit = "nats per token" if report.bits_per_byte is None else "bits per byte"
        lines.append(f"{report.above_floor:.3f} {unit} above the floor: {shares}")
    return lines
