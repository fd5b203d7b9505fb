"""Training on the terminal: the plan, progress, the summary."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from statistics import fmean, stdev
from typing import Any, Protocol, TypeVar, runtime_checkable

import rich.progress
from rich.console import Console
from rich.table import Column
from rich.text import Text

from mlx_attn.attention.config import VARIANTS
from mlx_attn.errors import RunError
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import ModelCost, model_cost
from mlx_attn.sampling.config import SamplerConfig
from mlx_attn.sampling.generate import stream_generate
from mlx_attn.text.corpus import Corpus
from mlx_attn.text.tokenizers import Tokenizer
from mlx_attn.training.config import TrainConfig
from mlx_attn.training.evaluation import Evaluation, task_predictions
from mlx_attn.training.events import Ended, Evaluated, Event, Failed, Started, Stepped, as_record
from mlx_attn.training.loop import INTERRUPTED, train
from mlx_attn.training.replicas import Launch, Replica, train_replicas
from mlx_attn.training.trainer import FLOAT_BYTES, Trainer
from mlx_attn.ui.terminal import count, discard_unread, duration, is_live, memory, printable

BAR = 20
"""Columns of the bar."""

WIDE_ENOUGH_FOR_A_BAR = 70


@runtime_checkable
class Display(AbstractContextManager["Display"], Protocol):
    """Takes reports while the context lasts."""

    def __call__(self, report: Event) -> None:
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

    def __call__(self, report: Event) -> None:
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

    def __call__(self, report: Event) -> None:
        """One object, flushed."""
        print(json.dumps(as_record(report), allow_nan=False), flush=True)

    def conclude(self, report: Ended, sample: str) -> None:
        """Nothing more."""


class Plain(Quiet):
    """One plain line a report, for a pipe or a file."""

    def __call__(self, report: Event) -> None:
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

    def __call__(self, report: Event) -> None:
        """Move the bar, or leave a line."""
        if isinstance(report, Started):
            self._bar.update(self._task, total=report.steps or None, completed=report.step)
        elif isinstance(report, Stepped):
            total = report.seconds + report.seconds_left
            room = self.console.width - (BAR + 2 if self._has_bar else 1)
            line = step_line(report, self._val_loss, room)
            self._bar.update(self._task, total=total, completed=report.seconds, description=line)
        elif isinstance(report, Evaluated):
            self._val_loss = f"{report.evaluation.val_loss:.3f}"
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
    found = report.evaluation
    floor = "" if found.above_floor is None else f" ({found.above_floor:.3f} above the floor)"
    best = "  best so far" if report.best else ""
    return (
        f"step {report.step}  val loss {found.val_loss:.4f}{spread_text(report, 4)} nats per "
        f"token{_bits('  ', found)}{floor}{_accuracy('  ', found)}{best}"
    )


def _bits(before: str, found: Evaluation) -> str:
    """The loss per byte, of a text."""
    bits = found.bits_per_byte
    return "" if bits is None else f"{before}{bits:.4f} bits per byte"


def _accuracy(before: str, found: Evaluation) -> str:
    """The share of right answers, of a task."""
    accuracy = found.accuracy
    return "" if accuracy is None else f"{before}{accuracy:.1%} of answers right"


def closing_lines(report: Ended) -> list[str]:
    """What to know when the training is over."""
    found = report.evaluation
    if found is None:
        return [f"{report.steps} steps, no validation yet"]
    lines = [
        f"best val loss {found.val_loss:.4f} nats per token{_bits(', ', found)}"
        f"{_accuracy(', ', found)}; {report.steps} steps, {count(report.tokens)} tokens, "
        f"{duration(report.seconds)}, {count(report.tok_s)} tok/s, {memory(report.peak_memory)}"
    ]
    if found.above_floor is not None:
        shares = ", ".join(f"{name} {share:.3f}" for name, share in found.abilities.items())
        unit = "nats per token" if found.bits_per_byte is None else "bits per byte"
        lines.append(f"{found.above_floor:.3f} {unit} above the floor: {shares}")
    return lines


SAMPLE_TOKENS = 120


def follow(
    trainer: Trainer, tokenizer: Tokenizer, display: Display, asked: Callable[[], bool]
) -> str:
    """Train, show and store every report, conclude, and return why the training ended.

    Reports go to metrics.jsonl and, at every validation, a sample to samples.txt. When reports can
    no longer be shown, as after `| head`, the training ends as if interrupted.

    Raises:
        OSError: They could not be shown for another reason, such as a full disk; all is saved.
    """
    keep, first_step = Keeper(trainer, tokenizer), trainer.progress.step
    audience = Audience()
    with display:
        for report in train(trainer, lambda: asked() or audience.gone):
            keep(report)
            audience.show(partial(display, report))
    audience.complain()
    return _concluded(trainer, display, first_step, keep)


def _concluded(trainer: Trainer, display: Display, first_step: int, keep: "Keeper") -> str:
    ended = keep.ended
    if not ended or ended.reason == INTERRUPTED:
        display.message(what_is_saved(trainer))
        return INTERRUPTED
    if ended.steps == first_step:
        display.message(f"nothing left to do at step {ended.steps}: give more --steps or --minutes")
    display.conclude(ended, keep.sample)
    return ended.reason


def what_is_saved(trainer: Trainer) -> str:
    """How to go on with a training that was interrupted."""
    if not trainer.run or trainer.saved_step is None:
        return "stopped; nothing was saved"
    return (
        f"saved at step {trainer.saved_step}; go on with:  "
        f"mlx-attn train --resume {trainer.run.path}"
    )


class Audience:
    """Whoever is shown the reports, until these can no longer be shown."""

    def __init__(self):
        self._failures: list[OSError] = []

    @property
    def gone(self) -> bool:
        """Whether something could not be shown."""
        return bool(self._failures)

    def show(self, show: Callable[[], None]) -> None:
        """Show something, and note if that fails."""
        try:
            show()
        except OSError as error:
            self._failures.append(error)
            if isinstance(error, BrokenPipeError):
                discard_unread()

    def complain(self) -> None:
        """Raise the first failure, unless it is that nobody reads on, as after `| head`."""
        if self.gone and not isinstance(self._failures[0], BrokenPipeError):
            raise self._failures[0]


class Keeper:
    """Stores reports and samples in the run directory; those made anew are forgotten first."""

    def __init__(self, trainer: Trainer, tokenizer: Tokenizer):
        self.trainer, self.tokenizer, self.sample = trainer, tokenizer, ""
        self.ended: Ended | None = None
        if trainer.run:
            trainer.run.forget_after(trainer.progress.step)

    def __call__(self, report: Event) -> None:
        """Store one report."""
        run = self.trainer.run
        self.ended = report if isinstance(report, Ended) else None
        if not run:
            return
        run.add_report(as_record(report))
        if isinstance(report, Evaluated):
            self.sample = write_sample(self.trainer, self.tokenizer)
            run.add_sample(report.step, self.sample)


def write_sample(trainer: Trainer, tokenizer: Tokenizer) -> str:
    """What the model writes now: a text from nothing, or its answers to a task."""
    model, split = trainer.model, trainer.evaluator.split
    model.eval()
    if split.scored is None:
        pieces = stream_generate(
            model, tokenizer, "", SamplerConfig(temp=0.8, seed=0), SAMPLE_TOKENS
        )
        text = "".join(piece.text for piece in pieces)
    else:
        text = task_predictions(model, split, tokenizer)
    model.train()
    return text


def plan_rows(trainer: Trainer, corpus: Corpus) -> list[tuple[str, str]]:
    """What the plan says, line by line."""
    config, variant = trainer.model.config, trainer.settings.variant
    cost = model_cost(config)
    rows = [
        ("variant", variant),
        ("model", _shape(config)),
        ("parameters", f"{cost.parameters:,} ({count(cost.attention_parameters)} in attention)"),
        ("text", _text(corpus)),
        ("training", _recipe(trainer)),
        ("memory", f"{memory(_state_bytes(cost))} for weights, gradient and optimizer"),
    ]
    if variant in VARIANTS:
        rows.insert(1, ("formula", VARIANTS[variant].formula))
    return rows


def plan_facts(trainer: Trainer, corpus: Corpus) -> dict[str, Any]:
    """The plan for a program."""
    cost = model_cost(trainer.model.config)
    return {
        "event": "plan",
        "variant": trainer.settings.variant,
        "params": cost.parameters,
        "attention_params": cost.attention_parameters,
        "step": trainer.progress.step,
        "steps": trainer.steps,
        "tokens_per_step": trainer.tokens_per_step,
        "training_tokens": len(corpus.train.tokens),
        "validation_tokens": len(corpus.val.tokens),
        "vocab_size": corpus.tokenizer.vocab_size,
        "memory": _state_bytes(cost),
    }


def replica_rows(
    replicas: Sequence[Trainer], corpus: Corpus, together: bool | None
) -> list[tuple[str, str]]:
    """The plan of several trainings of one form.

    Args:
        replicas: The trainings.
        corpus: Their text.
        together: Whether their steps are one computation; None where that is not decided.
    """
    seeds = ", ".join(str(replica.config.seed) for replica in replicas)
    how = {True: "together, as one step", False: "in turn, step by step", None: "at once"}[together]
    rows = [row for row in plan_rows(replicas[0], corpus) if row[0] != "memory"]
    states = sum(_state_bytes(model_cost(replica.model.config)) for replica in replicas)
    memory_row = ("memory", f"{memory(states)} for weights, gradients and optimizers")
    return [*rows, ("seeds", f"{seeds}: {how}"), memory_row]


def replica_facts(replicas: Sequence[Trainer], corpus: Corpus) -> dict[str, Any]:
    """The plan of several trainings for a program."""
    facts = plan_facts(replicas[0], corpus)
    memory_bytes = len(replicas) * facts["memory"]
    return {**facts, "memory": memory_bytes, "seeds": [r.config.seed for r in replicas]}


def _state_bytes(cost: ModelCost) -> int:
    """Bytes of weights, gradient and AdamW's two moments."""
    return 4 * FLOAT_BYTES * cost.parameters


def _shape(config: GPTConfig) -> str:
    heads = f"{config.n_heads} heads of {config.head_dim}"
    if config.n_kv_heads != config.n_heads:
        heads += f" ({config.n_kv_heads} for keys and values)"
    return (
        f"{config.n_layers} layers, {heads}, width {config.emb_dim}, context "
        f"{config.context_length}, {config.norm}, {config.activation}, positions {config.position}"
    )


def _text(corpus: Corpus) -> str:
    tokenizer = corpus.tokenizer
    return (
        f"{corpus.name}: {count(len(corpus.train.tokens))} tokens to train on, "
        f"{count(len(corpus.val.tokens))} to validate, {tokenizer.kind} vocabulary of "
        f"{tokenizer.vocab_size}"
    )


def _recipe(trainer: Trainer) -> str:
    tokens = f"{count(trainer.tokens_per_step)} tokens a step"
    if trainer.ranks.size > 1:
        tokens += f" shared by {trainer.ranks.size} ranks"
    done = trainer.progress.step
    so_far = f"; {done} steps are done" if done else ""
    return f"{_budget(trainer.config)}, {tokens}, {trainer.config.optimizer}{so_far}"


def _budget(training: TrainConfig) -> str:
    bounds = {
        f"{training.steps} steps": training.steps,
        f"{training.epochs:g} epochs": training.epochs,
        f"{training.minutes:g} minutes": training.minutes,
    }
    return " or ".join(text for text, bound in bounds.items() if bound)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanStepped(Stepped):
    """The mean loss of several trainings; tokens and tokens per second are of all together.

    Attributes:
        spread: Standard deviation of the loss between them, in nats per token.
    """

    spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanEvaluated(Evaluated):
    """The mean of several validations.

    Attributes:
        spread: Standard deviation of the loss between them, in nats per token.
    """

    spread: float


def mean_stepped(reports: Sequence[Stepped]) -> MeanStepped:
    """One report of the same step of several trainings."""
    sums = {key: sum(getattr(r, key) for r in reports) for key in ("tokens", "tok_s")}
    means = {key: fmean(getattr(r, key) for r in reports) for key in ("loss", "grad_norm", "lr")}
    spread = deviation([r.loss for r in reports])
    return MeanStepped(**{**asdict(reports[-1]), **sums, **means, "spread": spread})


def mean_evaluated(reports: Sequence[Evaluated]) -> MeanEvaluated:
    """One report of the validations of the same step; the best so far if it is for every one."""
    found = [report.evaluation for report in reports]
    means = {key: mean_of([getattr(each, key) for each in found]) for key in _MEANS}
    facts = {"best": all(r.best for r in reports), "tokens": sum(r.tokens for r in reports)}
    return MeanEvaluated(
        step=reports[-1].step,
        seconds=reports[-1].seconds,
        evaluation=Evaluation(**means),
        spread=deviation([each.val_loss for each in found]),
        **facts,
    )


def mean_of(numbers: Sequence[float | None]) -> Any:
    """The mean of those that are known; None where none is."""
    known = [number for number in numbers if number is not None]
    return fmean(known) if known else None


def deviation(numbers: Sequence[float]) -> float:
    """The standard deviation of a sample; 0 of one number."""
    return stdev(numbers) if len(numbers) > 1 else 0.0


def spread_text(report: Event, decimals: int) -> str:
    """The spread after a mean, such as " ± 0.012"; nothing after a number of one training."""
    if isinstance(report, MeanStepped | MeanEvaluated):
        return f" ± {report.spread:.{decimals}f}"
    return ""


_MEANS = ("val_loss", "bits_per_byte", "above_floor", "accuracy")


Ends = Mapping[int, Ended]
R = TypeVar("R", Stepped, Evaluated)


@runtime_checkable
class ReplicaDisplay(Protocol):
    """Takes the reports of every seed."""

    display: Display

    def __call__(self, seed: int, report: Event) -> None:
        """Show one report."""
        ...

    def conclude(self, ends: Ends) -> None:
        """Show the results of those that came to their end, by seed."""
        ...


class BySeed:
    """One JSON object a report, with the seed that it is of."""

    def __init__(self, display: Display):
        self.display = display

    def __call__(self, seed: int, report: Event) -> None:
        """One object, flushed."""
        print(json.dumps({**as_record(report), "seed": seed}, allow_nan=False), flush=True)

    def conclude(self, ends: Ends) -> None:
        """Nothing more."""


class Means:
    """Shows the mean of what all report of a step, as another display shows one training."""

    def __init__(self, display: Display, seeds: Sequence[int]):
        self.display = display
        self._last_step: dict[int, float] = dict.fromkeys(seeds, math.inf)
        self._stepped: list[Stepped] = []
        self._evaluated: list[Evaluated] = []

    def __call__(self, seed: int, report: Event) -> None:
        """Wait for the reports of the others, and show one for all."""
        if isinstance(report, Stepped):
            self._stepped = [*_of_its_step(self._stepped, report), report]
            if self._complete(self._stepped):
                self.display(mean_stepped(self._stepped))
        elif isinstance(report, Evaluated):
            self._evaluated = [*_of_its_step(self._evaluated, report), report]
            if self._complete(self._evaluated):
                self.display(mean_evaluated(self._evaluated))
        elif isinstance(report, Failed):
            self._last_step[seed] = report.step - 1
            self.display.message(f"seed {seed}: {report.message}")
        elif isinstance(report, Ended):
            self._last_step[seed] = report.steps
        elif isinstance(report, Started):
            self.display(report)

    def conclude(self, ends: Ends) -> None:
        """The mean, every seed, and what to do next."""
        for line in replica_closing_lines(ends):
            print(line)

    def _complete(self, reports: Sequence[Stepped | Evaluated]) -> bool:
        """Whether all that go as far as this step have reported it."""
        step = reports[-1].step
        return len(reports) == sum(last >= step for last in self._last_step.values())


class Paths(Means):
    """Shows no progress; the result is the runs' directories, for a script."""

    def conclude(self, ends: Ends) -> None:
        """Where the runs are."""
        for report in ends.values():
            print(report.run)


def replica_display(display: Display, seeds: Sequence[int]) -> ReplicaDisplay:
    """Shows several trainings by the display that would show one."""
    if isinstance(display, Json):
        return BySeed(display)
    return Means(display, seeds) if isinstance(display, Plain) else Paths(display, seeds)


def replica_closing_lines(ends: Ends) -> list[str]:
    """What to know when all are over."""
    found = [end.evaluation for end in ends.values() if end.evaluation]
    if not found:
        return ["no validation yet"]
    losses = [each.val_loss for each in found]
    bits = mean_of([each.bits_per_byte for each in found])
    per_byte = "" if bits is None else f", {bits:.4f} bits per byte"
    ended, speed = list(ends.values())[-1], sum(end.tok_s for end in ends.values())
    lines = [
        f"best val loss {fmean(losses):.4f} ± {deviation(losses):.4f} nats per token"
        f"{per_byte}: mean and deviation of {len(losses)} seeds; {duration(ended.seconds)}, "
        f"{count(sum(end.tokens for end in ends.values()))} tokens, {count(speed)} tok/s"
    ]
    for seed, end in ends.items():
        loss = f"{end.evaluation.val_loss:.4f}" if end.evaluation else "no validation"
        lines.append(f"seed {seed}  {loss}  {end.steps} steps  {end.run}".rstrip())
    return lines


def follow_replicas(
    replicas: Sequence[Replica],
    launch: Launch,
    tokenizer: Tokenizer,
    display: ReplicaDisplay,
    asked: Callable[[], bool],
) -> str:
    """Train, show and store every report, conclude, and return why the training ended.

    Every replica's reports and samples go to its own run, as in `show.training.follow`.

    Raises:
        OSError: Reports could not be shown, as on a full disk; all is saved.
        RunError: Replicas failed; the others came to their end.
    """
    keepers = {replica.config.seed: Keeper(replica, tokenizer) for replica in replicas}
    failed: dict[int, str] = {}
    audience = Audience()
    with display.display:
        for replica, report in train_replicas(replicas, launch, lambda: asked() or audience.gone):
            seed = replica.config.seed
            keepers[seed](report)
            audience.show(partial(display, seed, report))
            if isinstance(report, Failed):
                failed[seed] = report.message
    audience.complain()
    return _replicas_concluded(replicas, display, keepers, failed)


def _replicas_concluded(
    replicas: Sequence[Replica],
    display: ReplicaDisplay,
    keepers: Mapping[int, Keeper],
    failed: Mapping[int, str],
) -> str:
    ends = {seed: keeper.ended for seed, keeper in keepers.items() if keeper.ended}
    if any(end.reason == INTERRUPTED for end in ends.values()):
        display.display.message(saved_replicas(replicas))
        return INTERRUPTED
    if ends:
        display.conclude(ends)
    if failed:
        seed, message = next(iter(failed.items()))
        raise RunError(f"{len(failed)} of {len(replicas)} replicas failed: seed {seed}: {message}")
    return next(iter(ends.values())).reason


def saved_replicas(replicas: Sequence[Replica]) -> str:
    """How to go on with trainings that were interrupted."""
    runs = [replica.run for replica in replicas if replica.run]
    steps = [r.saved_step for r in replicas if r.saved_step is not None]
    if not runs or len(steps) < len(replicas):
        return "stopped; not every replica was saved"
    return f"saved at step {min(steps)}; go on with:  mlx-attn train --resume {runs[0].path.parent}"


def _of_its_step(reports: list[R], report: R) -> list[R]:
    """Those of the same step; what is left of an earlier one is dropped."""
    return [other for other in reports if other.step == report.step]
