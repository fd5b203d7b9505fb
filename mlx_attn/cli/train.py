"""`mlx-attn train`: settings from every layer, the text, the trainer, and Ctrl-C.

From one set of flags follows one training, a resumed one, one that starts from another run, or
several seeds side by side; under mlx.launch each of several processes runs this command.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from mlx_attn.cli.main import (
    INTERRUPTED,
    StopRequested,
    graceful_interrupt,
    read_settings,
)
from mlx_attn.cli.options import SHORTHANDS, TRAIN_OPTIONS, SectionedCommand, check_environment
from mlx_attn.cli.processes import connect, prefix_errors
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.plugins import used_plugins
from mlx_attn.training.config import RESUMABLE, Settings, layer_from, resolve, settings_from

if TYPE_CHECKING:
    from mlx_attn.runs import Run
    from mlx_attn.text.corpus import Corpus
    from mlx_attn.training.distributed import Distributed
    from mlx_attn.training.replicas import Replica
    from mlx_attn.training.show import Display
    from mlx_attn.training.trainer import Trainer


def train(dry_run: bool, as_json: bool, quiet: bool, together: str | None, **options: Any) -> None:
    """Train a tiny GPT with any attention.

    Without options: the preset `tiny` on stories that are made on the spot, with no network. A flag
    beats an environment variable (MLX_ATTN_STEPS for --steps), which beats the file of --config,
    which beats the preset. Ctrl-C finishes the step, saves, and says how to go on. Under mlx.launch
    all processes train one model: each takes its part of every batch.
    """
    from mlx_attn.training.show import Display
    from mlx_attn.ui.terminal import stderr_console

    check_environment()
    ranks = connect()
    with prefix_errors(ranks):
        if ranks.rank:
            display = Display(stderr_console(), "silent")
            corpus, trainer = _new_trainer(None, display, ranks)
            if not dry_run:
                _train(trainer, corpus, display)
        else:
            _lead(ranks, OutputOptions(dry_run, as_json, quiet, together), **options)


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """Flags that change no number of a training.

    Attributes:
        dry_run: Show the plan and stop.
        as_json: Events as JSON on stdout.
        quiet: No progress.
        together: "on", "off", "auto" or None: whether replicas take their steps as one.
    """

    dry_run: bool
    as_json: bool
    quiet: bool
    together: str | None

    def display(self, seeds: Sequence[int] = ()) -> "Display":
        """The display that fits the flags and the terminal."""
        from mlx_attn.training.show import display_for
        from mlx_attn.ui.terminal import stderr_console

        return display_for(self.as_json, self.quiet, stderr_console(), seeds)

    def show_plan(
        self, trainers: "Sequence[Trainer]", corpus: "Corpus", together: bool | None = None
    ) -> None:
        """Show the plan: before a training a message, alone a result."""
        from mlx_attn.training.show import plan_facts, plan_rows
        from mlx_attn.ui.terminal import print_rows, stderr_console, stdout_console

        rows = plan_rows(trainers, corpus, together)
        if self.dry_run and self.as_json:
            click.echo(json.dumps(plan_facts(trainers, corpus)))
        elif self.dry_run:
            print_rows(rows, stdout_console())
        elif not (self.as_json or self.quiet):
            print_rows(rows, stderr_console())


def _lead(
    ranks: "Distributed",
    output: OutputOptions,
    /,  # among the options is a setting called output
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
    """Do what the options of the first process ask for."""
    from mlx_attn import runs

    environment, flags = _layers(options)
    if resume:
        if out or name or config or overwrite or init_from:
            raise ConfigError(
                "--resume goes on in place: leave out --out, --name, --config and --init-from"
            )
        if replicas:
            raise ConfigError("--resume goes on with the seeds there are: leave out --replicas")
        # The environment's other settings are for new runs.
        changes = {k: v for k, v in environment.items() if k in RESUMABLE} | flags
        _resume(resume, changes, ranks, output)
        return
    if init_from and "preset" in flags:
        raise ConfigError("--init-from takes all settings from its run: leave out --preset")
    start = runs.find_run(init_from) if init_from else None
    below = layer_from(start.settings) if start else {}
    settings = resolve(below, read_settings(config) if config else {}, environment, flags)
    target = RunTarget(_new_directory(settings, out, name), overwrite, init_from)
    if replicas:
        _require_single_process(ranks)
        _train_seeds(settings, replicas, target, start, output)
    else:
        _train_one(settings, target, start, ranks, output)


def _require_single_process(ranks: "Distributed") -> None:
    if ranks.size > 1:
        raise ConfigError(
            f"{ranks.size} ranks train one model: start several seeds without mlx.launch, or one "
            "seed with it"
        )


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


def _train_one(
    settings: Settings,
    target: "RunTarget",
    start: "Run | None",
    ranks: "Distributed",
    output: OutputOptions,
) -> None:
    """Train a new run."""
    from mlx_attn.runs import check_free

    check_free(target.path, target.overwrite)
    display = output.display()
    corpus, trainer = _new_trainer(settings, display, ranks)
    if start:
        _init_from(start, corpus, trainer)
    _show_and_train(trainer, corpus, target, display, output)


def _resume(
    name: str, changes: dict[str, Any], ranks: "Distributed", output: OutputOptions
) -> None:
    """Resume a run, or several seeds, in place, with some settings changed."""
    from mlx_attn.runs import find_replicas, find_run

    if seeds := find_replicas(name):
        _require_single_process(ranks)
        _resume_seeds(seeds, changes, output)
        return
    run = find_run(name)
    display = output.display()
    corpus, trainer = _new_trainer(_resumed_settings(run, changes), display, ranks)
    _check_same_text(run, corpus)
    trainer.resume(run)
    _show_and_train(trainer, corpus, RunTarget(run.path), display, output)


def _show_and_train(
    trainer: "Trainer",
    corpus: "Corpus",
    target: "RunTarget",
    display: "Display",
    output: OutputOptions,
) -> None:
    """Show the plan, and train unless that is all that is wanted."""
    if output.together:
        raise ConfigError("--together is for several seeds: give --replicas N with it")
    if not output.dry_run:
        trainer.run = target.record(trainer, corpus)
    output.show_plan([trainer], corpus)
    if not output.dry_run:
        _train(trainer, corpus, display)


def _train(trainer: "Trainer", corpus: "Corpus", display: "Display") -> None:
    from mlx_attn.training.show import follow

    def to_the_end(should_stop: StopRequested) -> str:
        reason = follow(trainer, corpus.tokenizer, display, should_stop)
        # mlx.launch ends all ranks when the first one ends before its time: not before rank 0 has
        # saved and said all.
        trainer.ranks.barrier()
        return reason

    _interruptible(to_the_end, [trainer], display)


def _interruptible(
    follow: Callable[[StopRequested], str], trainers: "Sequence[Trainer]", display: "Display"
) -> None:
    """Train by `follow`, which returns why it ended; once interrupted, save and exit with 130."""
    from mlx_attn.training import loop
    from mlx_attn.training.show import what_is_saved

    announce = "finishing this step; Ctrl-C again quits at once"
    try:
        with graceful_interrupt(lambda: display.message(announce)) as should_stop:
            reason = follow(should_stop)
    except KeyboardInterrupt:
        display.message(what_is_saved(trainers))
        reason = loop.INTERRUPTED
    if reason == loop.INTERRUPTED:
        click.get_current_context().exit(INTERRUPTED)


def _train_seeds(
    settings: Settings, n: int, target: "RunTarget", start: "Run | None", output: OutputOptions
) -> None:
    """Train the settings' seed and those after it."""
    from mlx_attn import runs
    from mlx_attn.training.replicas import pays_off, replicas_of, with_seeds

    recipes = with_seeds(settings, n)
    seeds = [recipe.training.seed for recipe in recipes]
    runs.check_no_run(target.path)
    paths = [runs.seed_place(target.path, seed) for seed in seeds]
    targets = [RunTarget(path, target.overwrite, target.init_from) for path in paths]
    for path in paths:
        runs.check_free(path, target.overwrite)
    display = output.display(seeds)
    corpus = _prepared_text(settings, display)
    auto = output.together not in ("on", "off") and not output.dry_run
    together = output.together == "on" or (auto and pays_off(recipes, corpus))
    replicas = replicas_of(recipes, corpus)
    if start:
        for replica in replicas:
            _init_from(start, corpus, replica)
    _show_and_train_seeds(replicas, corpus, targets, together, display, output)


def _resume_seeds(runs: "Sequence[Run]", changes: dict[str, Any], output: OutputOptions) -> None:
    """Resume trainings that were begun side by side, each from where it stopped."""
    from mlx_attn.training.replicas import replicas_of

    recipes = [_resumed_settings(run, changes) for run in runs]
    display = output.display([recipe.training.seed for recipe in recipes])
    corpus = _prepared_text(recipes[0], display)
    replicas = replicas_of(recipes, corpus)
    for replica, run in zip(replicas, runs, strict=True):
        _check_same_text(run, corpus)
        replica.resume(run)
    # As it was decided at the beginning, so that the numbers are the same bits.
    before = "on" if runs[0].settings.get("together") else "off"
    together = (output.together or before) == "on"
    targets = [RunTarget(run.path) for run in runs]
    _show_and_train_seeds(replicas, corpus, targets, together, display, output)


def _show_and_train_seeds(
    replicas: "Sequence[Replica]",
    corpus: "Corpus",
    targets: "Sequence[RunTarget]",
    together: bool,
    display: "Display",
    output: OutputOptions,
) -> None:
    from mlx_attn.training.replicas import Together, in_turn
    from mlx_attn.training.show import follow_replicas

    output.show_plan(replicas, corpus, None if output.dry_run else together)
    if output.dry_run:
        return
    for replica, target in zip(replicas, targets, strict=True):
        replica.run = target.record(replica, corpus, together=together)
    launch = Together() if together else in_turn
    _interruptible(
        lambda stop: follow_replicas(replicas, launch, corpus.tokenizer, display, stop),
        replicas,
        display,
    )


def _new_trainer(
    settings: Settings | None, display: "Display", ranks: "Distributed"
) -> "tuple[Corpus, Trainer]":
    """The text, and a trainer on it; the settings are rank 0's, which alone must give them."""
    from mlx_attn.training.trainer import Trainer

    record = ranks.first(asdict(settings) if settings else None)
    ranks.check_same("plugin", [plugin["sha256"] for plugin in used_plugins(record["model"])])
    settings = settings or settings_from(record, {})
    if settings.text.data == "-" and ranks.size > 1:
        raise ConfigError("several ranks cannot read one standard input: name a file with --data")
    corpus = _prepared_text(settings, display)
    return corpus, Trainer(settings, corpus, ranks)


def _prepared_text(settings: Settings, display: "Display") -> "Corpus":
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


def _resumed_settings(run: "Run", changes: dict[str, Any]) -> Settings:
    """The settings of a run that is resumed, with some of them changed."""
    if not run.checkpoint.exists():
        raise RunError(f"{run.path} has no checkpoint: there is nothing to go on from")
    settings = settings_from(run.settings, changes)
    if settings.text.data == "-" and _at_terminal():
        raise RunError(
            f"{run.path} read its text from standard input: pipe the same text in again, or name a "
            "file that holds it with --data"
        )
    return settings


def _at_terminal() -> bool:
    """Whether standard input is typed."""
    return sys.stdin is not None and sys.stdin.isatty()


def _check_same_text(run: "Run", corpus: "Corpus") -> None:
    """Refuse to resume a run on another text."""
    if corpus.digest != run.settings.get("digest"):
        raise RunError(
            f"{run.path} was trained on another text than {corpus.name} holds now: name the old "
            "one with --data, or train a new run"
        )
    if run.load_tokenizer().vocabulary != corpus.tokenizer.vocabulary:
        raise RunError(
            f"{run.path} has another vocabulary than {corpus.name} gets now, perhaps from another "
            "version of sentencepiece: train a new run"
        )


def _init_from(start: "Run", corpus: "Corpus", trainer: "Trainer") -> None:
    """Give the trainer the weights of another run, in the form that it trains."""
    from mlx_attn.convert.model import starting_point

    if start.load_tokenizer().vocabulary != corpus.tokenizer.vocabulary:
        raise RunError(
            f"{start.path} has another vocabulary than {corpus.name} gets: train on its own text"
        )
    trainer.start_from(starting_point(start.load_model(), trainer.model.config))


def _new_directory(settings: Settings, out: Path | None, name: str | None) -> Path:
    """Where a new run goes: as told, or a free name in runs/."""
    from mlx_attn.runs import RUNS, free_name

    if out and name:
        raise ConfigError("--out and --name both say where the run goes: use one")
    if not (out or name):
        return free_name(RUNS, f"{settings.preset}-{settings.variant}")
    return out or RUNS / str(name)


@dataclass(frozen=True, slots=True)
class RunTarget:
    """Where a run lands, and the run it starts from."""

    path: Path
    overwrite: bool = False
    init_from: str | None = None

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
