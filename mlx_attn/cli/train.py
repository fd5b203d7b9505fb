"""`mlx-attn train`: from settings to a run directory."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from mlx_attn.cli.environment import check_environment
from mlx_attn.cli.interruption import Asked
from mlx_attn.cli.manner import Manner, run_orderly
from mlx_attn.cli.preparation import (
    Place,
    new_directory,
    new_trainer,
    resumed_trainer,
    starting_run,
    take_over,
)
from mlx_attn.cli.ranks import connected, named
from mlx_attn.cli.settings_file import read_settings
from mlx_attn.cli.train_options import SHORTHANDS, TRAIN_OPTIONS, SectionedCommand
from mlx_attn.cli.train_several import alone, begin_several, go_on_with_several
from mlx_attn.errors import ConfigError
from mlx_attn.training.settings import RESUMABLE, resolve

if TYPE_CHECKING:
    from mlx_attn.runs import Run
    from mlx_attn.show.progress import Display
    from mlx_attn.text.corpus import Corpus
    from mlx_attn.training.ranks import Ranks
    from mlx_attn.training.settings import Settings
    from mlx_attn.training.trainer import Trainer


def train(dry_run: bool, as_json: bool, quiet: bool, together: str | None, **options: Any) -> None:
    """Train a tiny GPT with any attention.

    Without options: the preset `tiny` on stories that are made on the spot, with no network. A flag
    beats an environment variable (MLX_ATTN_STEPS for --steps), which beats the file of --config,
    which beats the preset. Ctrl-C finishes the step, saves, and says how to go on. Under mlx.launch
    all processes train one model: each takes its part of every batch.
    """
    from mlx_attn.show.progress import Silent
    from mlx_attn.show.terminal import stderr_console

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
    ranks: "Ranks",
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
    settings: "Settings", place: Place, start: "Run | None", ranks: "Ranks", manner: Manner
) -> None:
    """A new training."""
    place.check()
    display = manner.display()
    corpus, trainer = new_trainer(settings, display, ranks)
    if start:
        take_over(start, corpus, trainer)
    _show_and_train(trainer, corpus, place, display, manner)


def _go_on(resume: str, changes: dict[str, Any], ranks: "Ranks", manner: Manner) -> None:
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
    from mlx_attn.show.plan import plan_facts, plan_rows

    if manner.together:
        raise ConfigError("--together is for several seeds: give --replicas N with it")
    if not manner.dry_run:
        trainer.run = place.record(trainer, corpus)
    manner.show_plan(plan_rows(trainer, corpus), plan_facts(trainer, corpus))
    if not manner.dry_run:
        _train(trainer, corpus, display)


def _train(trainer: "Trainer", corpus: "Corpus", display: "Display") -> None:
    """Train to the end, or until interrupted."""
    from mlx_attn.show.training import follow, what_is_saved

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
