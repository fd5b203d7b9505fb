"""How `mlx-attn train` trains, as its flags say: what is shown, and what an interruption does."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from click.core import ParameterSource

from mlx_attn.cli.main import INTERRUPTED, TIMEOUT, Asked, check_environment, orderly, read_settings
from mlx_attn.cli.options import SHORTHANDS, TRAIN_OPTIONS, SectionedCommand
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.plugins import used_plugins
from mlx_attn.training.config import RESUMABLE, Settings, layer_from, resolve, settings_from

if TYPE_CHECKING:
    from mlx_attn.runs import Run
    from mlx_attn.text.corpus import Corpus
    from mlx_attn.text.tokenizers import Tokenizer
    from mlx_attn.training.distributed import Distributed
    from mlx_attn.training.replicas import Replica
    from mlx_attn.training.show import Display
    from mlx_attn.training.trainer import Trainer


@dataclass(frozen=True, slots=True)
class Manner:
    """Flags that change no number of a training.

    Attributes:
        dry_run: Show the plan and stop.
        as_json: Reports as JSON on stdout.
        quiet: No progress.
        together: "on", "off", "auto" or None: whether replicas take their steps as one.
    """

    dry_run: bool
    as_json: bool
    quiet: bool
    together: str | None

    def display(self) -> "Display":
        """The display that fits the flags and the terminal."""
        from mlx_attn.training.show import display_for
        from mlx_attn.ui.terminal import stderr_console

        return display_for(self.as_json, self.quiet, stderr_console())

    def show_plan(self, rows: list[tuple[str, str]], facts: dict[str, Any]) -> None:
        """The plan: before a training a message, alone a result."""
        from mlx_attn.ui.terminal import print_rows, stderr_console, stdout_console

        if self.dry_run and self.as_json:
            click.echo(json.dumps(facts))
        elif self.dry_run:
            print_rows(rows, stdout_console())
        elif not (self.as_json or self.quiet):
            print_rows(rows, stderr_console())


def run_orderly(
    follow: Callable[[Asked], str], what_is_saved: Callable[[], str], display: "Display"
) -> None:
    """Train to the end, or until interrupted.

    Args:
        follow: Trains until the function that it is given says to stop; says why it ended.
        what_is_saved: What to say when the training was cut off.
        display: Takes messages.
    """
    from mlx_attn.training.loop import INTERRUPTED as ASKED

    announce = "finishing this step; Ctrl-C again quits at once"
    try:
        with orderly(lambda: display.message(announce)) as asked:
            reason = follow(asked)
    except KeyboardInterrupt:
        display.message(what_is_saved())
        reason = ASKED
    if reason == ASKED:
        click.get_current_context().exit(INTERRUPTED)


def new_trainer(
    settings: Settings | None, display: "Display", ranks: "Distributed"
) -> "tuple[Corpus, Trainer]":
    """The text that the settings name, and a trainer on it; None are rank 0's settings."""
    from mlx_attn.training.trainer import Trainer

    settings = settings_of_first(settings, ranks)
    if settings.text.data == "-" and ranks.size > 1:
        raise ConfigError("several ranks cannot read one standard input: name a file with --data")
    corpus = prepared_text(settings, display)
    return corpus, Trainer(settings, corpus, ranks)


def prepared_text(settings: Settings, display: "Display") -> "Corpus":
    """The text that the settings name."""
    from mlx_attn.text.corpus import prepare
    from mlx_attn.text.show import download_lines, tokenizing_lines

    text = settings.text
    if text.data == "-" and _at_terminal():
        display.message("reading the text from the terminal; Ctrl-D ends it")
    return prepare(
        text.data,
        text.tokenizer,
        text.vocab_size,
        progress=download_lines(display.message),
        tokenizing=tokenizing_lines(display.message),
    )


def settings_of_first(settings: Settings | None, ranks: "Distributed") -> Settings:
    """Rank 0's settings, on every rank; rank 0 must give them."""
    record = ranks.first(asdict(settings) if settings else None)
    ranks.check_same("plugin", [plugin["sha256"] for plugin in used_plugins(record["model"])])
    return settings or settings_from(record, {})


def resumed_trainer(
    name: str, changes: dict[str, Any], display: "Display", ranks: "Distributed"
) -> "tuple[Corpus, Trainer]":
    """A trainer where that of a run stopped, with some settings changed."""
    from mlx_attn.runs import find_run

    run = find_run(name)
    settings = resumed_settings(run, changes)
    corpus, trainer = new_trainer(settings, display, ranks)
    check_same_text(run, corpus)
    trainer.resume(run)
    return corpus, trainer


def resumed_settings(run: "Run", changes: dict[str, Any]) -> Settings:
    """The settings of a run that is to go on, with some of them changed."""
    if not run.checkpoint.exists():
        raise RunError(f"{run.path} has no checkpoint: there is nothing to go on from")
    settings = settings_from(run.settings, changes)
    if settings.text.data == "-" and _at_terminal():
        raise RunError(
            f"{run.path} read its text from standard input: pipe the same text in again, or name a "
            "file that holds it with --data"
        )
    return settings


def starting_run(name: str, flags: dict[str, Any]) -> "tuple[Run, dict[str, Any]]":
    """The run to start from, and its settings, which the new run's others go on top of."""
    from mlx_attn.runs import find_run

    if "preset" in flags:
        raise ConfigError("--init-from takes all settings from its run: leave out --preset")
    run = find_run(name)
    return run, layer_from(run.settings)


def take_over(start: "Run", corpus: "Corpus", trainer: "Trainer") -> None:
    """Give the trainer the weights of another run, in the form that it trains."""
    from mlx_attn.convert.model import starting_point

    if _vocabulary(start.load_tokenizer()) != _vocabulary(corpus.tokenizer):
        raise RunError(
            f"{start.path} has another vocabulary than {corpus.name} gets: train on its own text"
        )
    trainer.start_from(starting_point(start.load_model(), trainer.model.config))


def new_directory(settings: Settings, out: Path | None, name: str | None) -> Path:
    """Where a new run goes: as told, or a free name in runs/."""
    from mlx_attn.runs import RUNS, free_name

    if out and name:
        raise ConfigError("--out and --name both say where the run goes: use one")
    if not (out or name):
        return free_name(RUNS, f"{settings.preset}-{settings.variant}")
    return out or RUNS / str(name)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run lands, and what it is begun from."""

    path: Path
    overwrite: bool = False
    init_from: str | None = None

    def inside(self, path: Path) -> "Place":
        """The place of one of several runs, in a directory that is no run itself."""
        from mlx_attn.runs import check_no_run

        check_no_run(self.path)
        return replace(self, path=path)

    def check(self) -> None:
        """Refuse a place where the run must not go."""
        from mlx_attn.runs import check_free

        check_free(self.path, self.overwrite)

    def record(self, trainer: "Trainer", corpus: "Corpus", **more: Any) -> "Run":
        """The run directory with its settings and more facts; a new one gets the tokenizer too."""
        from mlx_attn.cli.info import versions
        from mlx_attn.runs import create_run

        facts = {"corpus": corpus.name, "digest": corpus.digest, "versions": versions(), **more}
        facts |= {"init_from": self.init_from} if self.init_from else {}
        record = trainer.settings.record(trainer.model.config, **facts)
        if trainer.run:
            return trainer.run.with_settings({**trainer.run.settings, **record})
        run = create_run(self.path, record, self.overwrite)
        corpus.tokenizer.save(run.path)
        return run


def _at_terminal() -> bool:
    """Whether somebody types what standard input gives."""
    return sys.stdin is not None and sys.stdin.isatty()


def check_same_text(run: "Run", corpus: "Corpus") -> None:
    """Refuse to go on with a run on another text."""
    if corpus.digest != run.settings.get("digest"):
        raise RunError(
            f"{run.path} was trained on another text than {corpus.name} holds now: name the old "
            "one with --data, or train a new run"
        )
    if _vocabulary(run.load_tokenizer()) != _vocabulary(corpus.tokenizer):
        raise RunError(
            f"{run.path} has another vocabulary than {corpus.name} gets now, perhaps from another "
            "version of sentencepiece: train a new run"
        )


def _vocabulary(tokenizer: "Tokenizer") -> list[bytes]:
    """The bytes of every token."""
    return [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]


CHATTER = r"^\[ring\] "
"""Twenty lines about sockets, which MLX writes when a rank is lost."""


def connected() -> "Distributed":
    """The ranks that this process was launched with.

    Ctrl-C ends the process while it waits for the others: MLX lets no Python run meanwhile.
    """
    from mlx_attn.training.distributed import init_distributed

    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        ranks = init_distributed(_patience(), _give_up)
    finally:
        signal.signal(signal.SIGINT, before)
    if ranks.size > 1:
        _leave_out(CHATTER)
    return ranks


@contextmanager
def named(ranks: "Distributed") -> Iterator[None]:
    """Errors of every rank but the first begin with its number."""
    try:
        yield
    except (ConfigError, RunError) as error:
        if not ranks.rank:
            raise
        raise type(error)(f"rank {ranks.rank}: {error}") from error


def _patience() -> float:
    from mlx_attn.training.distributed import DEFAULT_TIMEOUT

    text = os.environ.get(TIMEOUT, "")
    try:
        seconds = float(text) if text else DEFAULT_TIMEOUT
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= threading.TIMEOUT_MAX:
        raise ConfigError(f"{TIMEOUT}={text} must be a positive number of seconds")
    return seconds


def _leave_out(pattern: str) -> None:
    """Drop such lines from what MLX itself writes to stderr; our own lines go there directly."""
    with suppress(FileNotFoundError), os.fdopen(os.dup(2), "wb") as stderr:
        # In a group of its own it hears no Ctrl-C and outlives us, so that no line is lost.
        process = subprocess.Popen(
            ["grep", "--line-buffered", "-v", pattern],
            stdin=subprocess.PIPE,
            stdout=stderr,
            process_group=0,
        )
        sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, errors="backslashreplace")
        assert process.stdin
        os.dup2(process.stdin.fileno(), 2)


def _give_up(message: str) -> NoReturn:
    """End the process from any thread."""
    click.echo(f"Error: {message}", err=True)
    os._exit(1)


def train(dry_run: bool, as_json: bool, quiet: bool, together: str | None, **options: Any) -> None:
    """Train a tiny GPT with any attention.

    Without options: the preset `tiny` on stories that are made on the spot, with no network. A flag
    beats an environment variable (MLX_ATTN_STEPS for --steps), which beats the file of --config,
    which beats the preset. Ctrl-C finishes the step, saves, and says how to go on. Under mlx.launch
    all processes train one model: each takes its part of every batch.
    """
    from mlx_attn.training.show import Silent
    from mlx_attn.ui.terminal import stderr_console

    check_environment()
    ranks = connected()
    with named(ranks):
        if ranks.rank:
            display = Silent(stderr_console())
            corpus, trainer = new_trainer(None, display, ranks)
            if not dry_run:
                _train(trainer, corpus, display)
        else:
            _lead(ranks, Manner(dry_run, as_json, quiet, together), **options)


def _lead(
    ranks: "Distributed",
    manner: Manner,
    *,
    resume: str | None,
    init_from: str | None,
    config: Path | None,
    out: Path | None,
    name: str | None,
    overwrite: bool,
    replicas: int | None,
    **options: Any,
) -> None:
    """Do what the options ask for."""
    environment, flags = _layers(options)
    if resume:
        if out or name or config or overwrite or init_from:
            raise ConfigError(
                "--resume goes on in place: leave out --out, --name, --config and --init-from"
            )
        if replicas:
            raise ConfigError("--resume goes on with the seeds there are: leave out --replicas")
        # What the environment says of other settings is for new runs.
        changes = {k: v for k, v in environment.items() if k in RESUMABLE} | flags
        _go_on(resume, changes, ranks, manner)
    else:
        start, below = starting_run(init_from, flags) if init_from else (None, {})
        settings = resolve(below, read_settings(config) if config else {}, environment, flags)
        place = Place(new_directory(settings, out, name), overwrite, init_from)
        if replicas:
            alone(ranks)
            begin_several(settings, replicas, place, start, manner)
        else:
            _begin(settings, place, start, ranks, manner)


def _begin(
    settings: "Settings", place: Place, start: "Run | None", ranks: "Distributed", manner: Manner
) -> None:
    """A new training."""
    place.check()
    display = manner.display()
    corpus, trainer = new_trainer(settings, display, ranks)
    if start:
        take_over(start, corpus, trainer)
    _show_and_train(trainer, corpus, place, display, manner)


def _go_on(resume: str, changes: dict[str, Any], ranks: "Distributed", manner: Manner) -> None:
    """The training of a run, or of several that were begun at once."""
    from mlx_attn.runs import find_replicas

    runs = find_replicas(resume)
    if runs:
        alone(ranks)
        go_on_with_several(runs, changes, manner)
        return
    display = manner.display()
    corpus, trainer = resumed_trainer(resume, changes, display, ranks)
    _show_and_train(trainer, corpus, Place(Path(resume)), display, manner)


def _layers(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of the environment, and those of the flags with shorthands spelled out."""
    source = click.get_current_context().get_parameter_source
    given = {key: value for key, value in options.items() if value is not None}
    shorthands = [SHORTHANDS[key] for key in SHORTHANDS if given.pop(key, False)]
    environment = {k: v for k, v in given.items() if source(k) is ParameterSource.ENVIRONMENT}
    flags = {k: v for k, v in given.items() if k not in environment}
    for maps in shorthands:
        flags |= maps
    return environment, flags


def _show_and_train(
    trainer: "Trainer", corpus: "Corpus", place: Place, display: "Display", manner: Manner
) -> None:
    """Show the plan, and train unless that is all that is wanted."""
    from mlx_attn.training.show import plan_facts, plan_rows

    if manner.together:
        raise ConfigError("--together is for several seeds: give --replicas N with it")
    if not manner.dry_run:
        trainer.run = place.record(trainer, corpus)
    manner.show_plan(plan_rows(trainer, corpus), plan_facts(trainer, corpus))
    if not manner.dry_run:
        _train(trainer, corpus, display)


def _train(trainer: "Trainer", corpus: "Corpus", display: "Display") -> None:
    """Train to the end, or until interrupted."""
    from mlx_attn.training.show import follow, what_is_saved

    def to_the_end(asked: Asked) -> str:
        reason = follow(trainer, corpus.tokenizer, display, asked)
        # mlx.launch ends all ranks when the first one ends before its time: not before rank 0 has
        # saved and said all.
        trainer.ranks.barrier()
        return reason

    run_orderly(to_the_end, lambda: what_is_saved(trainer), display)


command = SectionedCommand(
    "train",
    callback=train,
    params=[*TRAIN_OPTIONS],
    help=train.__doc__,
    epilog="""\b
Examples:
  mlx-attn train                                 about a minute on a laptop
  mlx-attn train --variant merged --minutes 5
  mlx-attn train --preset macbook --no-out-proj --n-heads 1
  mlx-attn train --data notes/                   your own text
  mlx-attn train --resume runs/tiny-merged --steps 2000
  mlx-attn train --init-from runs/tiny-standard --variant merged --track 50
  mlx-attn train --preset nano --replicas 4      four seeds, for a mean and a spread
  mlx.launch -n 2 $(which python) -m mlx_attn train     two processes
""",
)


def alone(ranks: "Distributed") -> None:
    """Refuse several seeds in several processes."""
    if ranks.size > 1:
        raise ConfigError(
            f"{ranks.size} ranks train one model: start several seeds without mlx.launch, or one "
            "seed with it"
        )


def begin_several(
    settings: Settings, count: int, place: Place, start: "Run | None", manner: Manner
) -> None:
    """New trainings of the settings' seed and those after it, side by side in one directory."""
    from mlx_attn.runs import seed_place
    from mlx_attn.training.replicas import replicas_of, with_seeds

    recipes = with_seeds(settings, count)
    places = [place.inside(seed_place(place.path, each.training.seed)) for each in recipes]
    for each in places:
        each.check()
    display = manner.display()
    corpus = prepared_text(settings, display)
    together = not manner.dry_run and _together(manner.together, recipes, corpus)
    replicas = replicas_of(recipes, corpus)
    if start:
        for replica in replicas:
            take_over(start, corpus, replica)
    _train_several(replicas, corpus, places, together, display, manner)


def go_on_with_several(runs: Sequence["Run"], changes: dict[str, Any], manner: Manner) -> None:
    """Trainings that were begun at once, from where each of them stopped."""
    from mlx_attn.training.replicas import replicas_of

    recipes = [resumed_settings(run, changes) for run in runs]
    display = manner.display()
    corpus = prepared_text(recipes[0], display)
    replicas = replicas_of(recipes, corpus)
    for replica, run in zip(replicas, runs, strict=True):
        check_same_text(run, corpus)
        replica.resume(run)
    # As it was decided at the beginning, so that the numbers are the same bits.
    before = "on" if runs[0].settings.get("together") else "off"
    together = (manner.together or before) == "on"
    _train_several(replicas, corpus, [Place(run.path) for run in runs], together, display, manner)


def _together(wanted: str | None, recipes: Sequence[Settings], corpus: "Corpus") -> bool:
    from mlx_attn.training.replicas import pays_off

    return wanted == "on" or (wanted != "off" and pays_off(recipes, corpus))


def _train_several(
    replicas: Sequence["Replica"],
    corpus: "Corpus",
    places: Sequence[Place],
    together: bool,
    display: "Display",
    manner: Manner,
) -> None:
    from mlx_attn.training.replicas import Together, in_turn
    from mlx_attn.training.show import (
        follow_replicas,
        replica_display,
        replica_facts,
        replica_rows,
    )
    from mlx_attn.training.show import (
        saved_replicas as what_is_saved,
    )

    how = None if manner.dry_run else together
    manner.show_plan(replica_rows(replicas, corpus, how), replica_facts(replicas, corpus))
    if manner.dry_run:
        return
    for replica, place in zip(replicas, places, strict=True):
        replica.run = place.record(replica, corpus, together=together)
    shown = replica_display(display, [replica.config.seed for replica in replicas])
    launch = Together() if together else in_turn
    run_orderly(
        lambda asked: follow_replicas(replicas, launch, corpus.tokenizer, shown, asked),
        lambda: what_is_saved(replicas),
        display,
    )
