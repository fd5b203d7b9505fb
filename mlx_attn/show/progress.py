"""How a training is shown: a live line on a terminal, plain lines in a pipe, JSON for programs.

A display is a context manager that takes reports. Progress goes to stderr; with JSON the reports
themselves go to stdout, one object a line.
"""

import json
import sys
from contextlib import AbstractContextManager
from typing import Protocol

import rich.progress
from rich.console import Console
from rich.text import Text

from mlx_attn.show.quantities import count, duration, memory
from mlx_attn.training.reports import Ended, Evaluated, Report, Started, Stepped, as_record


class Display(AbstractContextManager["Display"], Protocol):
    """Takes reports while the context lasts."""

    def __call__(self, report: Report) -> None:
        """Show one report."""
        ...

    def message(self, text: str) -> None:
        """Show one line that stays."""
        ...


class Quiet:
    """Shows nothing but messages."""

    def __enter__(self) -> "Quiet":
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def __call__(self, report: Report) -> None:
        """Nothing."""

    def message(self, text: str) -> None:
        """One line on stderr."""
        print(text, file=sys.stderr, flush=True)


class Plain(Quiet):
    """One plain line a report, for a pipe or a file."""

    def __call__(self, report: Report) -> None:
        """One line on stderr."""
        line = evaluation_line(report) if isinstance(report, Evaluated) else None
        if isinstance(report, Stepped):
            line = step_line(report)
        if line:
            self.message(line)


class Json(Quiet):
    """One JSON object a report on stdout."""

    def __call__(self, report: Report) -> None:
        """One object, flushed."""
        print(json.dumps(as_record(report)), flush=True)


class Live:
    """A bar with the latest figures, and a line that stays for every validation."""

    def __init__(self, console: Console):
        self._console = console
        self._bar = rich.progress.Progress(
            rich.progress.BarColumn(bar_width=None),
            rich.progress.TextColumn("{task.description}"),
            console=console,
            transient=True,
            expand=True,
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
            total, done = _share(report)
            line = step_line(report, self._val_loss, short=self._console.width < 100)
            self._bar.update(self._task, total=total, completed=done, description=line)
        elif isinstance(report, Evaluated):
            self._val_loss = f"{report.val_loss:.3f}"
            self.message(evaluation_line(report))

    def message(self, text: str) -> None:
        """A line above the bar."""
        self._console.print(Text(text), soft_wrap=True)


def display_for(json_lines: bool, quiet: bool, console: Console) -> Display:
    """The display that fits the flags and the terminal."""
    if json_lines:
        return Json()
    if quiet:
        return Quiet()
    return Live(console) if console.is_terminal else Plain()


def step_line(report: Stepped, val_loss: str = "", short: bool = False) -> str:
    """Where the training stands, in one line."""
    steps = f"/{report.steps}" if report.steps else ""
    parts = [f"step {report.step}{steps}", f"loss {report.loss:.3f}"]
    if val_loss:
        parts.append(f"val {val_loss}")
    parts.append(f"{count(report.tok_s)} tok/s")
    if not short:
        parts.append(memory(report.peak_memory))
    return "  ".join([*parts, f"{duration(report.seconds_left)} left"])


def evaluation_line(report: Evaluated) -> str:
    """A validation, in one line."""
    floor = "" if report.above_floor is None else f" ({report.above_floor:.3f} above the floor)"
    best = "  best so far" if report.best else ""
    return (
        f"step {report.step}  val loss {report.val_loss:.4f} nats per token  "
        f"{report.bits_per_byte:.4f} bits per byte{floor}{best}"
    )


def closing_lines(report: Ended) -> list[str]:
    """What to know when the training is over."""
    if report.val_loss is None or report.bits_per_byte is None:
        return [f"{report.steps} steps, no validation yet"]
    lines = [
        f"best val loss {report.val_loss:.4f} nats per token, {report.bits_per_byte:.4f} bits per "
        f"byte; {report.steps} steps, {count(report.tokens)} tokens, "
        f"{duration(report.seconds)}, {count(report.tok_s)} tok/s, {memory(report.peak_memory)}"
    ]
    if report.above_floor is not None:
        shares = ", ".join(f"{name} {share:.3f}" for name, share in report.abilities.items())
        lines.append(f"{report.above_floor:.3f} bits per byte above the floor: {shares}")
    return lines


def _share(report: Stepped) -> tuple[float, float]:
    """Total and done for the bar: in steps, or in seconds where time is the bound."""
    total = report.seconds + report.seconds_left
    return total, report.seconds
