"""Training on the terminal: the plan, the progress with a curve of the losses, and the summary."""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from shlex import quote
from typing import Any

import numpy as np
import rich.progress
from rich.console import Console, RenderableType
from rich.table import Column
from rich.text import Text

from mlx_attn.arrays import count_parameters
from mlx_attn.attention.catalog import VARIANTS
from mlx_attn.errors import plural, printable
from mlx_attn.run_directory import Run
from mlx_attn.training.evaluation import Evaluation
from mlx_attn.training.events import Ended, Evaluated, Event, Started, Stepped, as_record
from mlx_attn.training.forecast import Forecast
from mlx_attn.training.loop import INTERRUPTED
from mlx_attn.training.trainer import FLOAT_BYTES, Trainer
from mlx_attn.ui.plots import COLOURS, Figure, panels
from mlx_attn.ui.terminal import (
    count,
    discard_unread,
    duration,
    is_live,
    memory,
    print_text,
    stdout_console,
)

# The plan.


def plan_rows(trainer: Trainer, expected: Forecast | None = None) -> list[tuple[str, str]]:
    """Return the plan of a training, line by line."""
    config, variant, corpus = trainer.model.config, trainer.settings.variant, trainer.corpus
    facts = plan_facts(trainer, expected)
    rows = {"variant": variant}
    # Only named variants have a formula.
    if variant in VARIANTS:
        rows["formula"] = VARIANTS[variant].formula
    rows |= {
        "model": f"{config.sizes}, {config.norm}, {config.activation}, positions {config.position}",
        "parameters": f"{facts['params']:,} ({count(facts['attention_params'])} in attention)",
        "text": f"{corpus.name}: {count(facts['training_tokens'])} tokens to train on, "
        f"{count(facts['validation_tokens'])} to validate, {corpus.tokenizer.kind} vocabulary of "
        f"{facts['vocab_size']}",
        "training": _recipe(trainer),
        "memory": f"{memory(facts['memory'])} for weights, gradients and optimizer",
    }
    if expected:
        seconds = expected.step_seconds
        step = f"{seconds:.2g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
        if seconds >= 60:
            step = duration(seconds)
        peak = f"about {memory(expected.peak_memory)}" if expected.peak_memory else "not known"
        rows["memory"] += f"; {peak} at the peak"
        rows["time"] = (
            f"about {duration(expected.seconds)}: {plural(expected.steps, 'step')} of {step}, "
            f"{plural(expected.validations, 'validation')} of "
            f"{duration(expected.validation_seconds)}, as measured now"
        )
    return list(rows.items())


def _recipe(trainer: Trainer) -> str:
    config, done = trainer.config, trainer.progress.step
    bounds = {"step": config.steps, "epoch": config.epochs, "minute": config.minutes}
    budget = " or ".join(plural(n, unit) for unit, n in bounds.items() if n)
    recipe = f"{budget}, {count(trainer.tokens_per_step)} tokens a step, {config.optimizer}"
    if 0 < trainer.steps < config.warmup:
        # The largest factor that `learning_rate_factor` reaches before the training ends.
        share = trainer.steps / (config.warmup + 1)
        recipe += (
            f"; the learning rate only reaches {share:.1g} of its peak, since its warm-up takes "
            f"{config.warmup} steps"
        )
    return recipe + (f"; {done} steps are done" if done else "")


def plan_facts(trainer: Trainer, expected: Forecast | None = None) -> dict[str, Any]:
    """Return the plan of a training as JSON values."""
    model, corpus = trainer.model, trainer.corpus
    parameters = count_parameters(model)
    facts: dict[str, Any] = {
        "event": "plan",
        "variant": trainer.settings.variant,
        "params": parameters,
        "attention_params": sum(count_parameters(block.att) for block in model.trf_blocks),
        "step": trainer.progress.step,
        "steps": trainer.steps,
        "tokens_per_step": trainer.tokens_per_step,
        "training_tokens": len(corpus.train.tokens),
        "validation_tokens": len(corpus.val.tokens),
        "vocab_size": corpus.tokenizer.vocab_size,
        # Of weights, gradients and AdamW's two moments.
        "memory": 4 * FLOAT_BYTES * parameters,
    }
    if expected:
        facts["forecast"] = asdict(expected)
    return facts


# The progress.

COMPILING = "compiling kernels, once on this machine"

BAR = 20  # width of the bar in columns; a narrow terminal has room only for the numbers
WIDE_ENOUGH_FOR_A_BAR = 70

CURVE = (70, 6)  # the most columns of the curve, and its lines
_FITS = (50, 20)  # columns and lines that a terminal needs to show it
_FEWEST = 3  # losses in a curve


class Display(rich.progress.Progress):
    """Shows the events of a training in a `with` block.

    Live, a bar and the latest figures stand below a curve of the losses, if there is room; the
    curve stays. JSON is written to stdout, progress and messages to a console on stderr.

    Args:
        console: Receives progress and messages.
        as_json: Whether each event is one JSON object.
        quiet: Whether only the run's directory is shown.
    """

    def __init__(self, console: Console, as_json: bool = False, quiet: bool = False):
        progress = "live" if is_live(console) else "plain"  # a bar, or one line per event
        self.mode = "json" if as_json else "quiet" if quiet else progress
        # Why events can no longer be displayed; the training should end.
        self.failure: OSError | None = None
        self.is_compiled: Callable[[], bool] = lambda: False  # whether the first step has ended
        self._began: float | None = None  # while the first step compiles
        self._losses: list[float] = []
        self._val_loss = ""
        bar = [rich.progress.BarColumn(bar_width=BAR)]
        text = rich.progress.TextColumn(
            "{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis")
        )
        columns = [*(bar if console.width >= WIDE_ENOUGH_FOR_A_BAR else []), text]
        disable = self.mode != "live"
        # The bar must not redirect results: stdout may be a file.
        super().__init__(
            *columns, console=console, transient=True, redirect_stdout=False, disable=disable
        )
        self._task = self.add_task("starting", total=None)

    def stop(self) -> None:
        """Remove the bar, and leave the curve."""
        super().stop()
        if not self.disable and (curve := self._curve()):
            self.console.print(Text(curve))

    def __call__(self, event: Event) -> None:
        """Show an event; a failure is kept, because the training still has to save its state."""
        try:
            if self.mode == "json":
                print(json.dumps(as_record(event), allow_nan=False), flush=True)
            elif self.mode == "live":
                self._move(event)
            elif self.mode == "plain" and isinstance(event, Stepped):
                self.message(step_line(event))
            elif self.mode == "plain" and isinstance(event, Started) and event.compiles:
                self.message(COMPILING)
            if isinstance(event, Evaluated) and self.mode in ("live", "plain"):
                self.message(evaluation_line(event))
        except OSError as error:
            # The first failure is the cause; later ones follow from it.
            self.failure = self.failure or error
            if isinstance(error, BrokenPipeError):  # nobody reads stdout any more
                discard_unread()

    def message(self, text: str) -> None:
        """Show a permanent line, above the bar if there is one."""
        print_text(text, self.console)

    def _move(self, event: Event) -> None:
        """Move the bar to an event."""
        if isinstance(event, Started):
            self.update(self._task, total=event.steps or None, completed=event.step)
            if event.compiles:
                self._began = time.monotonic()
        elif isinstance(event, Stepped):
            self._began = None
            self._losses.append(event.loss)
            # In seconds, so that the bar suits trainings bounded by steps, by minutes, or by both.
            total, line = event.seconds + event.seconds_left, step_line(event, self._val_loss)
            self.update(self._task, total=total, completed=event.seconds, description=line)
        elif isinstance(event, Evaluated):
            # Shown in the lines of later steps.
            self._val_loss = f"{event.evaluation.val_loss:.3f}"

    def _curve(self) -> str:
        """Return the curve; "" if it is too early, or the terminal is too small."""
        if len(self._losses) < _FEWEST:  # so too before the console is there
            return ""
        size, encoding = self.console.size, self.console.encoding.lower()
        if size.width < _FITS[0] or size.height < _FITS[1] or not encoding.startswith("utf"):
            return ""
        width, height = min(size.width, CURVE[0]), CURVE[1]
        return "\n".join(line_plot(self._losses, width, height, "training loss"))

    def get_renderables(self) -> Iterable[RenderableType]:
        """Return what rich draws at every refresh."""
        if self._began is not None:
            seconds = time.monotonic() - self._began
            line = "training" if self.is_compiled() else f"{COMPILING}: {seconds:.0f} s"
            self.update(self._task, description=line)
        if curve := self._curve():
            yield Text(curve)
        yield self.make_tasks_table(self.tasks)


def follow(events: Iterable[Event], trainer: Trainer, display: Display) -> bool:
    """Show the events of a training and its result; return whether it was interrupted.

    Raises:
        OSError: Events could not be displayed, as on a full disk; everything is saved.
    """
    first_step, timed = trainer.progress.step, trainer.progress.timed_steps
    display.is_compiled = lambda: trainer.progress.timed_steps > timed
    ended: Event | None = None
    with suppress(KeyboardInterrupt), display:
        for event in events:
            display(event)
            ended = event
    # A reader that closes the pipe, as with `| head`, is no failure.
    if display.failure and not isinstance(display.failure, BrokenPipeError):
        raise display.failure
    if not isinstance(ended, Ended) or ended.reason == INTERRUPTED:
        display.message(_what_is_saved(trainer))
        return True
    # The checkpoint had reached the bound before this command.
    if ended.steps == first_step:
        display.message(f"nothing left to do at step {ended.steps}: give more --steps or --minutes")
    lines = closing_lines(ended)
    lines += [f"it writes: {printable(trainer.sample.strip())}"] if trainer.sample else []
    lines += what_next(trainer.run) if trainer.run else []
    if display.mode == "quiet":
        print(printable(ended.run))
    elif display.mode != "json":
        print_text("\n".join(lines), stdout_console())
    return False


# Lines of text.


def step_line(event: Stepped, val_loss: str = "") -> str:
    """Return the state of a training in one line, the most important figures first."""
    parts = [
        f"step {event.step}" + (f"/{event.steps}" if event.steps else ""),
        f"loss {event.loss:.3f}",
        f"val {val_loss}" if val_loss else "",
        f"{duration(event.seconds_left)} left",
        f"{count(event.tok_s)} tok/s",
        memory(event.peak_memory),
    ]
    return "  ".join(filter(None, parts))


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


def what_next(run: Run) -> list[str]:
    """Return the next commands for a trained run."""
    plugins = (f" --plugin {quote(plugin['path'])}" for plugin in run.settings.get("plugins", ()))
    this = quote(str(run.path)) + "".join(plugins)
    return [f"talk to it:    mlx-attn repl {this}", f"look into it:  mlx-attn open {this}"]


def _what_is_saved(trainer: Trainer) -> str:
    """Return how to resume an interrupted training."""
    if not (trainer.run and trainer.saved):
        return "stopped; nothing was saved"
    resume = f"mlx-attn train --resume {quote(str(trainer.run.path))}"
    return f"saved at step {trainer.saved[0]}; to resume:  {resume}"


# The curve of the losses: in braille above the bar, or as a figure.

_BRAILLE = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])[:, None]
"""The bits of a character's dots, [4, 1, 2]."""


def line_plot(values: Sequence[float], width: int, height: int, title: str) -> list[str]:
    """Plot a curve as `height` lines of `width` columns, logarithmic if all values are positive.

    Each character has 4 x 2 braille dots (U+2800 to U+28FF). The first line is labelled with the
    largest value, the last one with the smallest; the title is at the right of the first line.
    """
    labels = [f"{max(values):.2f}", *[""] * (height - 2), f"{min(values):.2f}"]
    label = max(map(len, labels))
    # Two dots per character; the labels and two spaces take the rest of the line.
    columns = 2 * (width - label - 2)
    # A logarithm shows early and late progress on one scale.
    scaled = np.log(values) if min(values) > 0 else np.array(values)
    positions = np.linspace(0, len(values) - 1, columns)
    curve = np.interp(positions, np.arange(len(values)), scaled)
    # How far below the top the curve is, in dots.
    depths = (scaled.max() - curve) / (np.ptp(scaled) or 1.0) * (4 * height - 1)
    depths = np.rint(depths).astype(int).tolist()
    dots = np.zeros((4 * height, columns), bool)
    for x, (y, before) in enumerate(zip(depths, depths[:1] + depths, strict=False)):
        # The curve is connected: a step down is a vertical line.
        dots[min(y, before) : max(y, before) + 1, x] = True
    # [4 height, columns] -> [height, columns / 2]
    characters = 0x2800 + (dots.reshape(height, 4, -1, 2) * _BRAILLE).sum(axis=(1, 3))
    lines = ["".join(map(chr, row)) for row in characters.tolist()]
    blank = "\u2800" * len(title)
    if lines[0].endswith(blank):
        lines[0] = lines[0].removesuffix(blank) + title
    return [f"{text:>{label}}  {line}" for text, line in zip(labels, lines, strict=True)]


def draw_losses(training: Mapping[int, float], validation: Mapping[int, float]) -> Figure:
    """Draw the losses of a training in nats per token, by step."""
    figure, (axis,) = panels(1, 1, (4.5, 2.5))
    for losses, colour, mark, label in (
        (training, COLOURS[7], "-", "training"),
        (validation, COLOURS[1], "o-", "validation"),
    ):
        axis.plot([*losses], [*losses.values()], mark, color=colour, markersize=3, label=label)
    axis.set(xlabel="step", ylabel="nats per token")
    axis.legend()
    return figure
