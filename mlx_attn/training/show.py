"""Training on the terminal: progress and the summary; of one model or of several seeds."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from shlex import quote
from statistics import fmean, stdev
from typing import Any, Literal

import rich.progress
from rich.console import Console
from rich.table import Column
from rich.text import Text

from mlx_attn.errors import RunError, printable
from mlx_attn.text.tokenizers import Tokenizer
from mlx_attn.training.evaluation import Evaluation
from mlx_attn.training.events import Ended, Evaluated, Event, Failed, Started, Stepped, as_record
from mlx_attn.training.loop import INTERRUPTED, RunRecorder, train
from mlx_attn.training.replicas import Launch, Replica, train_replicas
from mlx_attn.training.report import ProgressWithCurve
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

BAR = 20
"""Columns of the bar."""

WIDE_ENOUGH_FOR_A_BAR = 70

Mode = Literal["live", "plain", "quiet", "json", "silent"]
"""A bar; a line an event; the run's directory alone; a JSON object an event; nothing at all."""


class Display:
    """Shows the events of a training while its context lasts, and then the result.

    Results and JSON go to stdout, progress and messages to a console on stderr.

    Args:
        console: For progress and messages.
        mode: What is shown. "silent" is for all processes but the first.
        seeds: Of several trainings side by side, which are shown as their mean.

    Attributes:
        failure: Why events can no longer be shown; the training should end.
    """

    def __init__(self, console: Console, mode: Mode, seeds: Sequence[int] = ()):
        self.console, self.mode = console, mode
        self._mean = SeedMean(seeds) if seeds else None
        self.failure: OSError | None = None
        self._val_loss = ""
        self._has_bar = console.width >= WIDE_ENOUGH_FOR_A_BAR
        text = rich.progress.TextColumn(
            "{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis")
        )
        columns = [rich.progress.BarColumn(bar_width=BAR)] if self._has_bar else []
        # Results on stdout are not the bar's to redirect: stdout may be a file.
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

    def __call__(self, event: Event, seed: int | None = None) -> None:
        """Show an event, of one of several seeds if one is named; `check` raises a failure."""
        try:
            self._show(event, seed)
        except OSError as error:
            self.failure = self.failure or error
            if isinstance(error, BrokenPipeError):
                discard_unread()

    def check(self) -> None:
        """Raise the first failure, unless it is that nobody reads on, as after `| head`."""
        if self.failure and not isinstance(self.failure, BrokenPipeError):
            raise self.failure

    def _show(self, event: Event, seed: int | None) -> None:
        if self.mode == "json":
            record = as_record(event) | ({} if seed is None else {"seed": seed})
            print(json.dumps(record, allow_nan=False), flush=True)
            return
        shown, spread = event, None
        if self._mean and seed is not None:
            if isinstance(event, Failed):
                self.message(f"seed {seed}: {event.message}")
            shown, spread = self._mean.add(seed, event)
        if self.mode == "live":
            self._move_bar(shown, spread)
        if isinstance(shown, Evaluated) and self.mode in ("live", "plain"):
            self.message(evaluation_line(shown, spread))
        elif isinstance(shown, Stepped) and self.mode == "plain":
            self.message(step_line(shown, spread=spread))

    def message(self, text: str) -> None:
        """Show a line that stays, above the bar where there is one."""
        if self.mode != "silent":
            print_text(text, self.console)

    def conclude(self, ended: Ended, sample: str) -> None:
        """Show the result of a training, what the model writes now, and what to do next."""
        if self.mode == "quiet":
            print(printable(ended.run))
        elif self.mode in ("live", "plain"):
            lines = closing_lines(ended)
            lines += [f"it writes: {printable(sample.strip())}"] if sample else []
            lines += what_next(ended.run) if ended.run else []
            print_text("\n".join(lines), stdout_console())

    def conclude_seeds(self, ends: Mapping[int, Ended]) -> None:
        """Show the mean result of the seeds that came to their end, and that of each."""
        if self.mode == "quiet":
            print(printable("\n".join(ended.run for ended in ends.values())))
        elif self.mode in ("live", "plain"):
            print_text("\n".join(closing_lines_of_seeds(ends)), stdout_console())

    def _move_bar(self, event: Event | None, spread: float | None) -> None:
        if isinstance(event, Started):
            self._bar.update(self._task, total=event.steps or None, completed=event.step)
        elif isinstance(event, Stepped):
            self._bar.add(event.loss)
            total = event.seconds + event.seconds_left
            room = self.console.width - (BAR + 2 if self._has_bar else 1)
            line = step_line(event, self._val_loss, room, spread)
            self._bar.update(self._task, total=total, completed=event.seconds, description=line)
        elif isinstance(event, Evaluated):
            self._val_loss = f"{event.evaluation.val_loss:.3f}"


def display_for(
    json_lines: bool, quiet: bool, console: Console, seeds: Sequence[int] = ()
) -> Display:
    """The display that fits the flags and the terminal."""
    progress: Mode = "live" if is_live(console) else "plain"
    return Display(console, "json" if json_lines else "quiet" if quiet else progress, seeds)


class SeedMean:
    """Joins the events of the same step of several seeds into one."""

    def __init__(self, seeds: Sequence[int]):
        self._last_step: dict[int, float] = dict.fromkeys(seeds, math.inf)
        self._waiting: dict[type[Event], list[Any]] = {Stepped: [], Evaluated: []}

    def add(self, seed: int, event: Event) -> tuple[Event | None, float | None]:
        """The event to show, and the standard deviation of its loss between the seeds.

        None until the events of all seeds that get as far as this step are there.
        """
        if isinstance(event, Stepped | Evaluated):
            same = [e for e in self._waiting[type(event)] if e.step == event.step] + [event]
            self._waiting[type(event)] = same
            if len(same) < sum(last >= event.step for last in self._last_step.values()):
                return None, None
            return mean_stepped(same) if isinstance(event, Stepped) else mean_evaluated(same)
        if isinstance(event, Failed):
            self._last_step[seed] = event.step - 1
        elif isinstance(event, Ended):
            self._last_step[seed] = event.steps
        return event, None


def mean_stepped(events: Sequence[Stepped]) -> tuple[Stepped, float]:
    """The mean of the same step of several seeds; tokens and tokens per second are added up."""
    sums: dict[str, Any] = {k: sum(getattr(e, k) for e in events) for k in ("tokens", "tok_s")}
    means = {k: fmean(getattr(e, k) for e in events) for k in ("loss", "grad_norm", "lr")}
    return replace(events[-1], **sums, **means), deviation([e.loss for e in events])


def mean_evaluated(events: Sequence[Evaluated]) -> tuple[Evaluated, float]:
    """The mean of the validations of the same step; the best so far if it is for every seed."""
    event = replace(
        events[-1],
        tokens=sum(e.tokens for e in events),
        evaluation=mean_evaluation([e.evaluation for e in events]),
        best=all(e.best for e in events),
    )
    return event, deviation([e.evaluation.val_loss for e in events])


def mean_evaluation(found: Sequence[Evaluation]) -> Evaluation:
    """The mean of several evaluations of one text."""
    means: dict[str, Any] = {}
    for key in (field.name for field in fields(Evaluation) if field.name != "abilities"):
        known = [value for each in found if (value := getattr(each, key)) is not None]
        means[key] = fmean(known) if known else None
    return Evaluation(**means)


def deviation(numbers: Sequence[float]) -> float:
    """The standard deviation of a sample; 0 of one number."""
    return stdev(numbers) if len(numbers) > 1 else 0.0


def step_line(
    event: Stepped, val_loss: str = "", width: int = 200, spread: float | None = None
) -> str:
    """Where the training stands, in one line, with fewer figures where they do not fit."""
    plus_minus = "" if spread is None else f" ± {spread:.3f}"
    parts = {
        "step": f"step {event.step}" + (f"/{event.steps}" if event.steps else ""),
        "loss": f"loss {event.loss:.3f}{plus_minus}",
        "val": f"val {val_loss}" if val_loss else "",
        "speed": f"{count(event.tok_s)} tok/s",
        "memory": memory(event.peak_memory),
        "left": f"{duration(event.seconds_left)} left",
    }
    for least in ("", "memory", "speed", "val", "left"):
        parts.pop(least, None)
        line = "  ".join(part for part in parts.values() if part)
        if len(line) <= width:
            break
    return line


def evaluation_line(event: Evaluated, spread: float | None = None) -> str:
    """A validation, in one line."""
    best = "  best so far" if event.best else ""
    return f"step {event.step}  val loss {_loss(event.evaluation, '  ', spread, True)}{best}"


def _loss(
    found: Evaluation, separator: str = ", ", spread: float | None = None, floor: bool = False
) -> str:
    plus_minus = "" if spread is None else f" ± {spread:.4f}"
    parts = [f"{found.val_loss:.4f}{plus_minus} nats per token"]
    if found.bits_per_byte is not None:
        parts.append(f"{found.bits_per_byte:.4f} bits per byte")
    if floor and found.above_floor is not None:
        parts[-1] += f" ({found.above_floor:.3f} above the floor)"
    if found.accuracy is not None:
        parts.append(f"{found.accuracy:.1%} of answers right")
    return separator.join(parts)


def closing_lines(ended: Ended) -> list[str]:
    """The result of a training: loss, cost, and where the loss above the floor comes from."""
    found = ended.evaluation
    if found is None:
        return [f"{ended.steps} steps, no validation yet"]
    lines = [
        f"best val loss {_loss(found)}; {ended.steps} steps, {count(ended.tokens)} tokens, "
        f"{duration(ended.seconds)}, {count(ended.tok_s)} tok/s, {memory(ended.peak_memory)}"
    ]
    if found.above_floor is not None:
        shares = ", ".join(f"{name} {share:.3f}" for name, share in found.abilities.items())
        unit = "nats per token" if found.bits_per_byte is None else "bits per byte"
        lines.append(f"{found.above_floor:.3f} {unit} above the floor: {shares}")
    return lines


def what_next(run: str) -> list[str]:
    """What to do with a run that is trained."""
    run = quote(run)
    return [f"talk to it:    mlx-attn repl {run}", f"look into it:  mlx-attn open {run}"]


def closing_lines_of_seeds(ends: Mapping[int, Ended]) -> list[str]:
    """The mean result of several seeds, and a line for each."""
    found = [ended.evaluation for ended in ends.values() if ended.evaluation]
    if not found:
        return ["no validation yet"]
    mean, spread = mean_evaluation(found), deviation([each.val_loss for each in found])
    tokens, speed = (sum(getattr(e, key) for e in ends.values()) for key in ("tokens", "tok_s"))
    lines = [
        f"best val loss {_loss(mean, spread=spread)}: "
        f"mean and deviation of {len(found)} seeds; {duration(list(ends.values())[-1].seconds)}, "
        f"{count(tokens)} tokens, {count(speed)} tok/s"
    ]
    for seed, ended in ends.items():
        loss = f"{ended.evaluation.val_loss:.4f}" if ended.evaluation else "no validation"
        lines.append(f"seed {seed}  {loss}  {ended.steps} steps  {ended.run}".rstrip())
    return lines


def follow(
    trainer: Trainer, tokenizer: Tokenizer, display: Display, should_stop: Callable[[], bool]
) -> str:
    """Train, show and store every event, conclude, and return why the training ended.

    Raises:
        OSError: Events could not be shown, as on a full disk; all is saved.
    """
    first_step, recorder = trainer.progress.step, RunRecorder(trainer, tokenizer)
    with display:
        for event in train(trainer, lambda: should_stop() or bool(display.failure)):
            recorder(event)
            display(event)
    display.check()
    ended = recorder.last
    if not isinstance(ended, Ended) or ended.reason == INTERRUPTED:
        display.message(what_is_saved([trainer]))
        return INTERRUPTED
    if ended.steps == first_step:
        display.message(f"nothing left to do at step {ended.steps}: give more --steps or --minutes")
    display.conclude(ended, recorder.sample)
    return ended.reason


def follow_replicas(
    replicas: Sequence[Replica],
    launch: Launch,
    tokenizer: Tokenizer,
    display: Display,
    should_stop: Callable[[], bool],
) -> str:
    """Train several seeds, each in a run of its own, as in `follow`.

    Raises:
        OSError: Events could not be shown, as on a full disk; all is saved.
        RunError: Replicas failed; the others came to their end.
    """
    recorders = {replica: RunRecorder(replica, tokenizer) for replica in replicas}
    events = train_replicas(replicas, launch, lambda: should_stop() or bool(display.failure))
    with display:
        for replica, event in events:
            recorders[replica](event)
            display(event, replica.config.seed)
    display.check()
    last = {replica.config.seed: recorder.last for replica, recorder in recorders.items()}
    ends = {seed: event for seed, event in last.items() if isinstance(event, Ended)}
    if any(ended.reason == INTERRUPTED for ended in ends.values()):
        display.message(what_is_saved(replicas))
        return INTERRUPTED
    if ends:
        display.conclude_seeds(ends)
    failed = [f"seed {seed}: {e.message}" for seed, e in last.items() if isinstance(e, Failed)]
    if failed:
        raise RunError(f"{len(failed)} of {len(replicas)} replicas failed: {failed[0]}")
    return next(iter(ends.values())).reason


def what_is_saved(trainers: Sequence[Trainer]) -> str:
    """How to resume trainings that were interrupted."""
    steps = [trainer.saved_step for trainer in trainers if trainer.saved_step is not None]
    run = trainers[0].run
    if not run or len(steps) < len(trainers):
        return f"stopped; {'nothing' if len(trainers) == 1 else 'not every replica'} was saved"
    path = run.path if len(trainers) == 1 else run.path.parent
    return f"saved at step {min(steps)}; to resume:  mlx-attn train --resume {quote(str(path))}"
