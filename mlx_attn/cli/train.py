"""`mlx-attn train`: settings from every layer, the training, and Ctrl-C.

The flags ask for a new training, possibly with another run's weights, or resume one.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlx_attn.cli.main import INTERRUPTED, graceful_interrupt
from mlx_attn.cli.options import TRAIN_OPTIONS, SectionedCommand, layers_of, settings_in
from mlx_attn.cli.output import emit, note
from mlx_attn.errors import ConfigError
from mlx_attn.files import user_path
from mlx_attn.training.config import RESUMABLE, Settings, expanded

if TYPE_CHECKING:
    from mlx_attn.api.trained import Training
    from mlx_attn.text.corpus import Corpus


_EXAMPLES = """\b
Examples:
  mlx-attn train                                 about a minute on a laptop
  mlx-attn train --variant merged --minutes 5
  mlx-attn train --preset macbook --no-out-proj --n-heads 1
  mlx-attn train --data notes/                   your own text
  mlx-attn train --resume runs/tiny-merged --steps 2000
  mlx-attn train --init-from runs/tiny-standard --variant merged --track 50
"""


@click.command(cls=SectionedCommand, params=TRAIN_OPTIONS, epilog=_EXAMPLES)
def command(dry_run: bool, as_json: bool, quiet: bool, log_to: str | None, **options: Any) -> None:
    """Train a tiny GPT with any attention.

    Without options: the preset `tiny` on stories that are generated on the spot, with no network. A
    flag overrides an environment variable (MLX_ATTN_STEPS for --steps), which overrides the file of
    --config, which overrides the preset. Ctrl-C finishes the step, saves, and prints the command
    that resumes.
    """
    from mlx_attn.machine import blas
    from mlx_attn.runs import RUNS, free_name
    from mlx_attn.training.forecast import forecast
    from mlx_attn.training.recording import load_logger, logging_to, train_recorded
    from mlx_attn.training.show import Display, follow, plan_facts, plan_rows
    from mlx_attn.ui.terminal import print_rows, stderr_console

    if line := blas.advice():
        note(line)
    if log_to:
        load_logger(log_to)
    training = _training(dry_run, options)
    trainer = training.trainer
    if dry_run:
        expected = forecast(trainer)
        emit(plan_facts(trainer, expected), as_json, lambda: [plan_rows(trainer, expected)])
        return
    if not (as_json or quiet):
        print_rows(plan_rows(trainer), stderr_console())
    training.out = training.out or free_name(RUNS, trainer.settings.run_name)
    display = Display(stderr_console(), as_json, quiet)
    announce = "finishing this step; Ctrl-C again quits at once"
    with (
        training.open_directory(),
        logging_to(log_to or "", trainer.run) as log,
        graceful_interrupt(lambda: display.message(announce)) as should_stop,
    ):
        events = train_recorded(trainer, lambda: should_stop() or bool(display.failure), log)
        if follow(events, trainer, display):
            click.get_current_context().exit(INTERRUPTED)


_ASKED = ("resume", "init_from", "config", "out", "name", "overwrite")
"""Options that say where a training begins and where it is kept; the others are settings."""


def _training(dry_run: bool, options: dict[str, Any]) -> "Training":
    """Return the training that the options ask for."""
    from mlx_attn.api.trained import new_training, resumed_training
    from mlx_attn.runs import RUNS, find_run

    asked = {key: options.pop(key) for key in _ASKED}
    environment, flags = layers_of(options)
    _refuse_contradictions(asked, flags)
    if asked["resume"]:
        # The environment's other settings are for new runs.
        changes = {key: value for key, value in environment.items() if key in RESUMABLE} | flags
        training = resumed_training(find_run(asked["resume"]), changes, _prepared_text)
        run = training.trainer.run
        if run and not run.checkpoint.exists():
            note(f"{run.path} was stopped before its first checkpoint: it begins again")
        return training
    file = settings_in(asked["config"], expanded) if asked["config"] else {}
    out = asked["out"] or (RUNS / user_path(asked["name"]) if asked["name"] else None)
    layers = [file, environment, flags]
    overwrite, start = asked["overwrite"], asked["init_from"]
    return new_training(layers, _prepared_text, out, overwrite, start, draw=not dry_run)


def _refuse_contradictions(asked: Mapping[str, Any], flags: Mapping[str, Any]) -> None:
    name = asked["name"]
    if "" in asked.values():
        raise ConfigError("--name, --resume and --init-from name a run: '' is none")
    if asked["resume"] and any(asked[key] for key in _ASKED[1:]):
        raise ConfigError(
            "--resume continues a run in place: leave out --out, --name, --config and --init-from"
        )
    if asked["init_from"] and "preset" in flags:
        raise ConfigError("--init-from takes all settings from its run: leave out --preset")
    if asked["out"] and name:
        raise ConfigError("--out and --name both say where the run goes: use one")
    if name and (name != Path(name).name or not name.isprintable()):
        raise ConfigError("--name is one name in runs/: --out names a directory elsewhere")


def _prepared_text(settings: Settings) -> "Corpus":
    corpus = settings.corpus()
    note(*corpus.notes)
    return corpus
