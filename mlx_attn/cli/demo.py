"""`mlx-attn demo`: two forms of attention, three trainings of each, and a page to look at them.

A demonstration of what the other commands do, small enough for two minutes on a laptop. What was
trained is kept: a demo that is started again goes on where the last one ended.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import click

from mlx_attn.attention.config import VARIANTS, find_variant
from mlx_attn.cli.main import INTERRUPTED, StopRequested, graceful_interrupt, say
from mlx_attn.cli.options import Named
from mlx_attn.cli.train import RunTarget
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.records import Object, parse_record
from mlx_attn.run_directory import RUNS, Run, held, open_run, seed_place

if TYPE_CHECKING:
    from rich.console import Console

    from mlx_attn.text.corpus import Corpus
    from mlx_attn.training.events import Event
    from mlx_attn.training.trainer import Trainer

RECIPE: dict[str, Any] = {"preset": "nano", "steps": 300, "eval_every": 0}
"""The settings of every training; the validation is at the end."""
STANDARD = "standard"
SEEDS = (0, 1, 2)
STUDENT = 4.303
"""The 0.975 quantile of Student's t with two degrees of freedom, those of three differences."""

_EXAMPLES = """\b
Examples:
  mlx-attn demo
  mlx-attn demo --variant no-query --no-open
"""


@click.command(epilog=_EXAMPLES)
@click.option(
    "--variant",
    type=Named(VARIANTS),
    default="no-out-proj",
    show_default=True,
    metavar="NAME",
    help="What to train beside the standard form.",
)
@click.option("--overwrite", is_flag=True, help="Train again what an earlier demo left.")
@click.option("--no-open", is_flag=True, help="Write the page, and do not open it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def command(
    ctx: click.Context, variant: str, overwrite: bool, no_open: bool, as_json: bool
) -> None:
    """Train two forms of attention, compare them, and open a page with both: two minutes.

    Three small models of each form learn to tell stories. Then: how far apart their losses are,
    with an interval, and one model of each on a page. Ctrl-C keeps what is done, and the same
    command goes on from there.
    """
    import webbrowser

    from mlx_attn.explore.page import example_texts, write_page
    from mlx_attn.ui.terminal import print_text, stderr_console, stdout_console

    messages = stderr_console()
    arms = (STANDARD, _beside_standard(variant))
    with graceful_interrupt(lambda: None) as should_stop:
        try:
            runs = _trained(arms, overwrite, messages, should_stop)
        except KeyboardInterrupt:
            runs = None
    if runs is None:
        print_text("stopped; 'mlx-attn demo' goes on from here", messages)
        ctx.exit(INTERRUPTED)
    pair = [runs[arm][0] for arm in arms]
    path, _ = write_page(pair, example_texts(pair[0]), RUNS / f"demo-{arms[1]}.html")
    result = Result(arms, [[_bits_per_byte(run) for run in runs[arm]] for arm in arms])
    if as_json:
        say(json.dumps(result.record() | {"page": str(path)}))
    else:
        lines = [*result.lines(), "", f"both, on a page: {path}", *_what_next(pair)]
        print_text("\n".join(lines), stdout_console())
    if not no_open:
        webbrowser.open(path.resolve().as_uri())


def _beside_standard(name: str) -> str:
    """The variant of that name, which is known before anything is trained."""
    variant = find_variant(name).name
    if variant == STANDARD:
        raise ConfigError("a demo compares standard with another form: name that one")
    return variant


@dataclass(frozen=True, slots=True)
class Result:
    """What a demo found.

    Attributes:
        arms: The two forms.
        losses: Bits per byte by form and seed.
    """

    arms: tuple[str, str]
    losses: Sequence[Sequence[float]]

    def interval(self) -> tuple[float, float, float]:
        """The mean difference, and the ends of its 95 % interval: mean +- t s / sqrt(n)."""
        differences = [b - a for a, b in zip(*self.losses, strict=True)]
        reach = STUDENT * stdev(differences) / math.sqrt(len(differences))
        mean = fmean(differences)
        return mean, mean - reach, mean + reach

    def record(self) -> dict[str, Any]:
        """The result for a program."""
        mean, low, high = self.interval()
        losses = dict(zip(self.arms, self.losses, strict=True))
        return {"bits_per_byte": losses, "difference": mean, "interval": [low, high]}

    def lines(self) -> Iterator[str]:
        """The result for a person, and what it is worth."""
        (first, second), (mean, low, high) = self.arms, self.interval()
        width = max(map(len, self.arms))
        for arm, losses in zip(self.arms, self.losses, strict=True):
            each = "  ".join(f"{loss:.4f}" for loss in losses)
            yield f"{arm:{width}}  {each}  mean {fmean(losses):.4f} bits per byte"
        yield ""
        yield (
            f"{second} minus {first}: {mean:+.4f} bits per byte, 95 % interval {low:+.4f} to "
            f"{high:+.4f} ({len(SEEDS)} pairs of seeds, Student's t)."
        )
        if low <= 0 <= high:
            yield "The interval holds 0: these trainings do not say which form is better."
        else:
            better = first if mean > 0 else second
            steps = RECIPE["steps"]
            yield f"The interval leaves out 0: here, after {steps} steps, {better} is better."
        yield (
            "A demonstration: three seeds, a tiny model, few steps, one learning rate for both, "
            "and made-up stories. It cannot show that two forms are equal, nor what longer "
            f"training does. 'mlx-attn compare --variants {first},{second}' asks properly."
        )


def _what_next(pair: Sequence[Run]) -> list[str]:
    return [
        f"talk to both:    mlx-attn repl {pair[0].path}   and there /vs {pair[1].path}",
        "a larger model:  mlx-attn train",
    ]


def _trained(
    arms: Sequence[str], overwrite: bool, messages: "Console", should_stop: StopRequested
) -> dict[str, list[Run]] | None:
    """The runs of each form, one a seed, trained where they are not there; None if interrupted."""
    from mlx_attn.text.corpus import prepare
    from mlx_attn.training.config import resolve
    from mlx_attn.training.trainer import Trainer

    runs: dict[str, list[Run]] = {arm: [] for arm in arms}
    pairs = [(arm, seed) for seed in SEEDS for arm in arms]
    with _Progress(messages, len(pairs)) as progress:
        for arm, seed in pairs:
            settings = resolve({**RECIPE, "variant": arm, "seed": seed})
            text = settings.text
            corpus = prepare(text.data, text.tokenizer, text.vocab_size)
            trainer, path = Trainer(settings, corpus), seed_place(RUNS / f"demo-{arm}", seed)
            found = None if overwrite else _earlier(path, trainer)
            if found and found.is_done:
                progress.skipped(arm, seed)
            else:
                progress.begins(arm, seed)
                if not _train(trainer, corpus, path, found, progress, should_stop):
                    return None
            runs[arm].append(open_run(path))
    return runs


@dataclass(frozen=True, slots=True)
class _Earlier:
    """A run that an earlier demo left, of the same settings."""

    run: Run
    is_done: bool


def _earlier(path: Path, trainer: "Trainer") -> _Earlier | None:
    """What an earlier demo left in `path`, unless it is another experiment or cannot be read."""
    try:
        run = open_run(path)
        reports = run.metrics()
    except RunError:
        return None
    wanted = parse_record(
        json.dumps(trainer.settings.record(trainer.model.config)), Object, str(path)
    )
    same = all(run.settings.get(key) == wanted[key] for key in ("model", "training", "text"))
    is_done = bool(reports) and reports[-1].get("reason") == "done" and run.weights.exists()
    return _Earlier(run, is_done) if same and (is_done or run.checkpoint.exists()) else None


def _train(
    trainer: "Trainer",
    corpus: "Corpus",
    path: Path,
    earlier: _Earlier | None,
    progress: "_Progress",
    should_stop: StopRequested,
) -> bool:
    """Train a run to its end; False if interrupted, with everything saved."""
    from mlx_attn.training.events import Ended
    from mlx_attn.training.loop import INTERRUPTED, RunRecorder, train

    if earlier:
        trainer.resume(click.get_current_context().with_resource(held(earlier.run)))
    else:
        trainer.run = RunTarget(path, overwrite=True).record(trainer, corpus)
    recorder = RunRecorder(trainer, corpus.tokenizer)
    for event in train(trainer, should_stop):
        recorder(event)
        progress(event)
    return isinstance(recorder.last, Ended) and recorder.last.reason != INTERRUPTED


def _bits_per_byte(run: Run) -> float:
    losses = [loss for report in run.metrics() if (loss := report.get("bits_per_byte"))]
    if not losses:
        raise RunError(f"{run.path}: no validation is recorded; --overwrite trains it again")
    return min(losses)


class _Progress:
    """Where the demo stands: a bar with the loss on a terminal, a line a training elsewhere."""

    def __init__(self, console: "Console", trainings: int):
        from rich.progress import BarColumn, TextColumn

        from mlx_attn.training.report import ProgressWithCurve
        from mlx_attn.ui.terminal import is_live

        self._console, self._trainings, self._done, self._name = console, trainings, 0, ""
        columns = BarColumn(bar_width=20), TextColumn("{task.description}")
        self._bar = ProgressWithCurve(
            *columns, console=console, transient=True, redirect_stdout=False
        )
        self._task = self._bar.add_task("preparing the stories", total=trainings * RECIPE["steps"])
        self._is_live = is_live(console)

    def __enter__(self) -> "_Progress":
        if self._is_live:
            self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._is_live:
            self._bar.stop()

    def begins(self, arm: str, seed: int) -> None:
        """Show which training begins."""
        self._name = f"{arm}, seed {seed}"
        self._bar.restart()

    def skipped(self, arm: str, seed: int) -> None:
        """Show that a training was done before."""
        self._console.print(f"{arm}, seed {seed}: trained before")
        self._ends()

    def __call__(self, event: "Event") -> None:
        """Show an event of the training."""
        from mlx_attn.training.events import Ended, Stepped
        from mlx_attn.ui.terminal import duration

        if isinstance(event, Stepped):
            self._bar.add(event.loss)
            self._bar.update(
                self._task,
                completed=self._done * RECIPE["steps"] + event.step,
                description=f"{self._done + 1} of {self._trainings}: {self._name}, "
                f"step {event.step}, loss {event.loss:.3f}",
            )
        elif isinstance(event, Ended) and event.evaluation and event.reason == "done":
            loss, time = event.evaluation.bits_per_byte, duration(event.seconds)
            self._console.print(f"{self._name}: {loss:.4f} bits per byte in {time}")
            self._ends()

    def _ends(self) -> None:
        self._done += 1
        self._bar.update(self._task, completed=self._done * RECIPE["steps"])
