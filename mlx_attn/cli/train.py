"""`mlx-attn train`: from settings to a run directory."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from mlx_attn.cli.environment import check_environment
from mlx_attn.cli.interruption import INTERRUPTED, orderly
from mlx_attn.cli.preparation import (
    new_directory,
    new_trainer,
    record_run,
    resumed_trainer,
    starting_run,
    take_over,
)
from mlx_attn.cli.ranks import connected, named
from mlx_attn.cli.settings_file import read_settings
from mlx_attn.cli.train_options import SHORTHANDS, TRAIN_OPTIONS, SectionedCommand
from mlx_attn.errors import ConfigError
from mlx_attn.training.settings import RESUMABLE, resolve

if TYPE_CHECKING:
    from mlx_attn.show.progress import Display
    from mlx_attn.text.corpus import Corpus
    from mlx_attn.training.ranks import Ranks
    from mlx_attn.training.trainer import Trainer


def train(dry_run: bool, as_json: bool, quiet: bool, **options: Any) -> None:
    """Train a tiny GPT with any attention.

    Without options: the preset `tiny` on stories that are made on the spot, with no network. A flag
    beats an environment variable (MLX_ATTN_STEPS for --steps), which beats the file of --config,
    which beats the preset. Ctrl-C finishes the step, saves, and says how to go on. Under mlx.launch
    all processes train one model: each takes its part of every batch.
    """
    from mlx_attn.show.progress import Silent, display_for
    from mlx_attn.show.terminal import stderr_console

    check_environment()
    ranks = connected()
    with named(ranks):
        if ranks.rank:
            display = Silent(stderr_console())
            corpus, trainer = new_trainer(None, display, ranks)
        else:
            display = display_for(as_json, quiet, stderr_console())
            corpus, trainer = _prepared(ranks, display, dry_run, **options)
            _show_plan(trainer, corpus, dry_run, as_json, quiet)
        if not dry_run:
            _train(trainer, corpus, display)


def _prepared(
    ranks: "Ranks",
    display: "Display",
    dry_run: bool,
    *,
    resume: str | None,
    init_from: str | None,
    config: Path | None,
    out: Path | None,
    name: str | None,
    overwrite: bool,
    **options: Any,
) -> "tuple[Corpus, Trainer]":
    """The text and the trainer that the options ask for; where it will train, its run as well."""
    environment, flags = _layers(options)
    if resume:
        if out or name or config or overwrite or init_from:
            raise ConfigError(
                "--resume goes on in place: leave out --out, --name, --config and --init-from"
            )
        # What the environment says of other settings is for new runs.
        changes = {k: v for k, v in environment.items() if k in RESUMABLE} | flags
        path = Path(resume)
        corpus, trainer = resumed_trainer(resume, changes, display, ranks)
    else:
        start, below = starting_run(init_from, flags) if init_from else (None, {})
        settings = resolve(below, read_settings(config) if config else {}, environment, flags)
        path = new_directory(settings, out, name, overwrite)
        corpus, trainer = new_trainer(settings, display, ranks)
        if start:
            take_over(start, corpus, trainer)
    if not dry_run:
        trainer.run = record_run(trainer, corpus, path, overwrite, init_from)
    return corpus, trainer


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


def _show_plan(
    trainer: "Trainer", corpus: "Corpus", dry_run: bool, as_json: bool, quiet: bool
) -> None:
    """The plan: before a training a message, alone a result."""
    from mlx_attn.show.plan import plan_facts, plan_rows
    from mlx_attn.show.terminal import print_rows, stderr_console, stdout_console

    if dry_run and as_json:
        click.echo(json.dumps(plan_facts(trainer, corpus)))
    elif dry_run:
        print_rows(plan_rows(trainer, corpus), stdout_console())
    elif not (as_json or quiet):
        print_rows(plan_rows(trainer, corpus), stderr_console())


def _train(trainer: "Trainer", corpus: "Corpus", display: "Display") -> None:
    """Train to the end, or until interrupted."""
    from mlx_attn.show.training import INTERRUPTED as ASKED
    from mlx_attn.show.training import follow, what_is_saved

    announce = "finishing this step; Ctrl-C again quits at once"
    try:
        with orderly(lambda: display.message(announce)) as asked:
            reason = follow(trainer, corpus.tokenizer, display, asked)
            # mlx.launch ends all ranks when the first one ends before its time: not before rank 0
            # has saved and said all.
            trainer.ranks.barrier()
    except KeyboardInterrupt:
        display.message(what_is_saved(trainer))
        reason = ASKED
    if reason == ASKED:
        click.get_current_context().exit(INTERRUPTED)


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
  mlx.launch -n 2 $(which python) -m mlx_attn train     two processes
""",
)
