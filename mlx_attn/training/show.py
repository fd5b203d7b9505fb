"""Training on the terminal: progress and the summary."""

import json
from collections.abc import Callable
from shlex import quote
from typing import Literal

import rich.progress
from rich.console import Console
from rich.table import Column
from rich.text import Text

from mlx_attn.errors import printable
from mlx_attn.text.tokenizers import Tokenizer
from mlx_attn.training.evaluation import Evaluation
from mlx_attn.training.events import Ended, Evaluated, Event, Started, Stepped, as_record
from mlx_attn.training.loop import INTERRUPTED, RunRecorder, train
from mlx_attn.training.report import ProgressWithCurve
from mlx_attn.training.summaries import Neighbour, neighbour_of
from mlx_attn.training.trainer import Trainer
from mlx_attn.ui.terminal import (
    count,
    discard_unread,
    duration,
    is_live,
    memory,
    print_text,
    stdout_console,
)

BAR = 20  # width of the progress bar in columns

WIDE_ENOUGH_FOR_A_BAR = 70

COMPILING = "the first step compiles its kernels, once"

Mode = Literal["live", "plain", "quiet", "json", "silent"]
"""A bar; one line per event; only the run's directory; one JSON object per event; nothing."""


class Display:
    """Shows the events of a training in a `with` block, and then the result.

    Results and JSON are written to stdout, progress and messages to a console on stderr.

    Args:
        console: Receives progress and messages.
        mode: The output format; "silent" is for all processes but the first.
    """

    def __init__(self, console: Console, mode: Mode):
        self.console, self.mode = console, mode
        # Why events can no longer be displayed; the training should end.
        self.failure: OSError | None = None
        self._val_loss = ""
        # A narrow terminal has room only for the numbers.
        self._has_bar = console.width >= WIDE_ENOUGH_FOR_A_BAR
        text = rich.progress.TextColumn(
            "{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis")
        )
        columns = [rich.progress.BarColumn(bar_width=BAR)] if self._has_bar else []
        # The bar must not redirect results: stdout may be a file.
        self._bar = ProgressWithCurve(
            *columns, text, console=console, transient=True, redirect_stdout=False
        )
        self._task = self._bar.add_task("starting", total=None)

    def __enter__(self) -> "Display":
        if self.mode == "live":
            self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self.mode == "live":
            self._bar.stop()
            if plot := self._bar.curve():
                self.console.print(Text(plot))

    def __call__(self, event: Event) -> None:
        """Show an event; `check` raises a failure."""
        try:
            self._show(event)
        except OSError as error:
            # The first failure is the cause; later ones follow from it.
            self.failure = self.failure or error
            # Nobody reads stdout any more; the training still has to save its state.
            if isinstance(error, BrokenPipeError):
                discard_unread()

    def check(self) -> None:
        """Raise the first failure, unless the reader closed the pipe, as with `| head`."""
        if self.failure and not isinstance(self.failure, BrokenPipeError):
            raise self.failure

    def _show(self, event: Event) -> None:
        if self.mode == "json":
            print(json.dumps(as_record(event), allow_nan=False), flush=True)
            return
        if self.mode == "live":
            self._move_bar(event)
        if isinstance(event, Evaluated) and self.mode in ("live", "plain"):
            self.message(evaluation_line(event))
        elif isinstance(event, Stepped) and self.mode == "plain":
            self.message(step_line(event))
        elif isinstance(event, Started) and event.compiles and self.mode == "plain":
            self.message(COMPILING)

    def message(self, text: str) -> None:
        """Show a permanent line, above the bar if there is one."""
        if self.mode != "silent":
            print_text(text, self.console)

    def conclude(self, ended: Ended, sample: str, neighbour: Neighbour | None = None) -> None:
        """Show the result of a training, a sample of the model's text, and the next commands."""
        if self.mode == "quiet":
            print(printable(ended.run))
        elif self.mode in ("live", "plain"):
            # Results are for stdout; everything else goes to the console on stderr.
            lines = closing_lines(ended)
            lines += [f"it writes: {printable(sample.strip())}"] if sample else []
            lines += what_next(ended.run, neighbour) if ended.run else []
            print_text("\n".join(lines), stdout_console())

    def _move_bar(self, event: Event) -> None:
        if isinstance(event, Started):
            total = event.steps or None
            self._bar.update(self._task, total=total, completed=event.step)
            if event.compiles:
                self._bar.update(self._task, description=COMPILING)
        elif isinstance(event, Stepped):
            self._bar.add(event.loss)
            # In seconds, so that the bar suits trainings bounded by steps, by minutes, or by both.
            total = event.seconds + event.seconds_left
            room = self.console.width - (BAR + 2 if self._has_bar else 1)
            line = step_line(event, self._val_loss, room)
            self._bar.update(self._task, total=total, completed=event.seconds, description=line)
        elif isinstance(event, Evaluated):
            # Shown in the lines of later steps.
            self._val_loss = f"{event.evaluation.val_loss:.3f}"


def display_for(json_lines: bool, quiet: bool, console: Console) -> Display:
    """Return the display that suits the flags and the terminal."""
    progress: Mode = "live" if is_live(console) else "plain"
    return Display(console, "json" if json_lines else "quiet" if quiet else progress)


def step_line(event: Stepped, val_loss: str = "", width: int = 200) -> str:
    """Return the state of a training in one line, with fewer figures if the line is too long."""
    parts = {
        "step": f"step {event.step}" + (f"/{event.steps}" if event.steps else ""),
        "loss": f"loss {event.loss:.3f}",
        "val": f"val {val_loss}" if val_loss else "",
        "speed": f"{count(event.tok_s)} tok/s",
        "memory": memory(event.peak_memory),
        "left": f"{duration(event.seconds_left)} left",
    }
    # Drop the least important figures first, until the line fits.
    for least in ("", "memory", "speed", "val", "left"):
        parts.pop(least, None)
        line = "  ".join(part for part in parts.values() if part)
        if len(line) <= width:
            break
    return line


def evaluation_line(event: Evaluated) -> str:
    """Return a validation as one line."""
    best = "  best so far" if event.best else ""
    return f"step {event.step}  val loss {_loss(event.evaluation, '  ', True)}{best}"


def _loss(evaluation: Evaluation, separator: str = ", ", floor: bool = False) -> str:
    parts = [f"{evaluation.val_loss:.4f} nats per token"]
    if evaluation.bits_per_byte is not None:
        parts.append(f"{evaluation.bits_per_byte:.4f} bits per byte")
    if floor and evaluation.above_floor is not None:
        parts[-1] += f" ({evaluation.above_floor:.3f} above the floor)"
    if evaluation.accuracy is not None:
        parts.append(f"{evaluation.accuracy:.1%} of answers right")
    parts += [f"{name} {value:.4g}" for name, value in evaluation.metrics.items()]
    return separator.join(parts)


def closing_lines(ended: Ended) -> list[str]:
    """Return the result of a training: loss, cost, and the parts of the loss above the floor."""
    best = ended.evaluation
    if best is None:
        return [f"{ended.steps} steps, no validation yet"]
    lines = [
        f"best val loss {_loss(best)}; {ended.steps} steps, {count(ended.tokens)} tokens, "
        f"{duration(ended.seconds)}, {count(ended.tok_s)} tok/s, {memory(ended.peak_memory)}"
    ]
    if best.above_floor is not None:
        shares = ", ".join(f"{name} {share:.3f}" for name, share in best.abilities.items())
        unit = "nats per token" if best.bits_per_byte is None else "bits per byte"
        lines.append(f"{best.above_floor:.3f} {unit} above the floor: {shares}")
    return lines


def what_next(run: str, neighbour: Neighbour | None = None) -> list[str]:
    """Return the next commands for a trained run."""
    name = quote(run)
    lines = [f"talk to it:    mlx-attn repl {name}", f"look into it:  mlx-attn open {name}"]
    return lines + (_beside(neighbour, run) if neighbour else [])


def _beside(neighbour: Neighbour, run: str) -> list[str]:
    """Compare the run's loss with another run's, and tell how to get a verdict."""
    lesson = "one seed each is no verdict" if neighbour.question else "so far only chance moves it"
    lines = [
        f"beside it:     {neighbour.run.name} {neighbour.loss:.4f} {neighbour.unit}, this one "
        f"{neighbour.difference:+.4f}: {lesson}"
    ]
    if neighbour.question:
        lines.append(f"for a verdict: mlx-attn compare {neighbour.question}")
    return [*lines, f"see both:      mlx-attn open {quote(str(neighbour.run.path))} {quote(run)}"]


def follow(
    trainer: Trainer, tokenizer: Tokenizer, display: Display, should_stop: Callable[[], bool]
) -> str:
    """Train, show and store every event, and return why the training ended.

    Raises:
        OSError: Events could not be displayed, as on a full disk; everything is saved.
    """
    first_step, recorder = trainer.progress.step, RunRecorder(trainer, tokenizer)
    with display:
        for event in train(trainer, lambda: should_stop() or bool(display.failure)):
            recorder(event)
            display(event)
    display.check()
    ended = recorder.last
    if not isinstance(ended, Ended) or ended.reason == INTERRUPTED:
        display.message(what_is_saved(trainer))
        return INTERRUPTED
    # The checkpoint had reached the bound before this command.
    if ended.steps == first_step:
        display.message(f"nothing left to do at step {ended.steps}: give more --steps or --minutes")
    display.conclude(ended, recorder.sample, neighbour_of(trainer.run) if trainer.run else None)
    return ended.reason


def what_is_saved(trainer: Trainer) -> str:
    """Return how to resume an interrupted training."""
    run, step = trainer.run, trainer.saved_step
    if not run or step is None:
        return "stopped; nothing was saved"
    return f"saved at step {step}; to resume:  mlx-attn train --resume {quote(str(run.path))}"
