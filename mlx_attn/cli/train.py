"""`mlx-attn train`: from settings to a run directory."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from mlx_attn.cli.interruption import INTERRUPTED, orderly
from mlx_attn.cli.settings_file import read_settings
from mlx_attn.cli.train_options import SHORTHANDS, TRAIN_OPTIONS, SectionedCommand
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.training.settings import RESUMABLE, Settings, layer_from, resolve, settings_from

if TYPE_CHECKING:
    from mlx_attn.runs import Run
    from mlx_attn.show.progress import Display
    from mlx_attn.text.corpus import Corpus
    from mlx_attn.text.tokenizers import Tokenizer
    from mlx_attn.training.trainer import Trainer


def train(
    resume: Path | None,
    init_from: Path | None,
    config: Path | None,
    out: Path | None,
    name: str | None,
    overwrite: bool,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Train a tiny GPT with any attention.

    Without options: the preset `tiny` on stories that are made on the spot, with no network. A flag
    beats an environment variable (MLX_ATTN_STEPS for --steps), which beats the file of --config,
    which beats the preset. Ctrl-C finishes the step, saves, and says how to go on.
    """
    from mlx_attn.show.progress import display_for
    from mlx_attn.show.terminal import stderr_console

    display = display_for(as_json, quiet, stderr_console())
    environment, flags = _layers(options)
    if resume:
        if out or name or config or overwrite or init_from:
            raise ConfigError(
                "--resume goes on in place: leave out --out, --name, --config and --init-from"
            )
        path = resume
        corpus, trainer = _resumed(resume, environment, flags, display)
    else:
        start, below = _start(init_from, flags)
        settings = resolve(below, read_settings(config) if config else {}, environment, flags)
        path = _directory(settings, out, name, overwrite)
        corpus, trainer = _prepared(settings, display)
        if start:
            _take_over(start, corpus, trainer)
    _show_plan(trainer, corpus, dry_run, as_json, quiet)
    if not dry_run:
        trainer.run = _recorded(trainer, corpus, path, overwrite, init_from)
        _train(trainer, corpus, display)


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


def _resumed(
    path: Path, environment: dict[str, Any], flags: dict[str, Any], display: "Display"
) -> "tuple[Corpus, Trainer]":
    """A trainer where an earlier one stopped; the environment's other settings are for new runs."""
    run = _find_run(path)
    if not run.checkpoint.exists():
        raise RunError(f"{path} has no checkpoint: there is nothing to go on from")
    changes = {key: value for key, value in environment.items() if key in RESUMABLE} | flags
    settings = settings_from(run.settings, changes)
    if settings.text.data == "-" and sys.stdin.isatty():
        raise RunError(
            f"{run.path} read its text from standard input: pipe the same text in again, or name a "
            "file that holds it with --data"
        )
    corpus, trainer = _prepared(settings, display)
    _check_same_text(run, corpus)
    trainer.resume(run)
    return corpus, trainer


def _find_run(path: Path) -> "Run":
    """The run in a directory, or of that name in runs/."""
    from mlx_attn.runs import RUNS, open_run

    return open_run(path if path.is_dir() or not (RUNS / path).is_dir() else RUNS / path)


def _start(init_from: Path | None, flags: dict[str, Any]) -> "tuple[Run | None, dict[str, Any]]":
    """The run to start from, if any, and its settings, which the new run's others go on top of."""
    if not init_from:
        return None, {}
    if "preset" in flags:
        raise ConfigError("--init-from takes all settings from its run: leave out --preset")
    run = _find_run(init_from)
    return run, layer_from(run.settings)


def _take_over(start: "Run", corpus: "Corpus", trainer: "Trainer") -> None:
    """Give the trainer the weights of another run, in the form that it trains."""
    from mlx_attn.lab.starting import starting_point

    if vocabulary(start.load_tokenizer()) != vocabulary(corpus.tokenizer):
        raise RunError(
            f"{start.path} has another vocabulary than {corpus.name} gets: train on its own text"
        )
    trainer.start_from(starting_point(start.load_model(), trainer.model.config))


def _prepared(settings: Settings, display: "Display") -> "tuple[Corpus, Trainer]":
    from mlx_attn.show.downloads import download_lines
    from mlx_attn.text.corpus import prepare
    from mlx_attn.training.trainer import Trainer

    text = settings.text
    progress = download_lines(display.message)
    corpus = prepare(text.data, text.tokenizer, text.vocab_size, progress=progress)
    return corpus, Trainer(settings, corpus)


def _check_same_text(run: "Run", corpus: "Corpus") -> None:
    if corpus.digest != run.settings.get("digest"):
        raise RunError(
            f"{run.path} was trained on another text than {corpus.name} holds now: name the old "
            "one with --data, or train a new run"
        )
    if vocabulary(run.load_tokenizer()) != vocabulary(corpus.tokenizer):
        raise RunError(
            f"{run.path} has another vocabulary than {corpus.name} gets now, perhaps from another "
            "version of sentencepiece: train a new run"
        )


def vocabulary(tokenizer: "Tokenizer") -> list[bytes]:
    """The bytes of every token."""
    return [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]


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


def _recorded(
    trainer: "Trainer", corpus: "Corpus", path: Path, overwrite: bool, init_from: Path | None
) -> "Run":
    """The run directory with its settings, and for a new one the tokenizer."""
    from mlx_attn.runs import create_run
    from mlx_attn.show.machine import versions

    facts = {"corpus": corpus.name, "digest": corpus.digest, "versions": versions()}
    facts |= {"init_from": str(init_from)} if init_from else {}
    record = trainer.settings.record(trainer.model.config, **facts)
    if trainer.run:
        return trainer.run.with_settings({**trainer.run.settings, **record})
    run = create_run(path, record, overwrite)
    corpus.tokenizer.save(run.path)
    return run


def _directory(settings: Settings, out: Path | None, name: str | None, overwrite: bool) -> Path:
    """Where a new run goes: as told, or a free name in runs/."""
    from mlx_attn.runs import RUNS, check_free, free_name

    if out and name:
        raise ConfigError("--out and --name both say where the run goes: use one")
    if not (out or name):
        return free_name(RUNS, f"{settings.preset}-{settings.variant}")
    path = out or RUNS / str(name)
    check_free(path, overwrite)
    return path


def _train(trainer: "Trainer", corpus: "Corpus", display: "Display") -> None:
    """Train to the end, or until interrupted."""
    from mlx_attn.show.training import INTERRUPTED as ASKED
    from mlx_attn.show.training import follow, what_is_saved

    announce = "finishing this step; Ctrl-C again quits at once"
    try:
        with orderly(lambda: display.message(announce)) as asked:
            reason = follow(trainer, corpus.tokenizer, display, asked)
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
""",
)
