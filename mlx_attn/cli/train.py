"""`mlx-attn train`: from settings to a run directory."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlx_attn.cli.interruption import orderly
from mlx_attn.cli.settings_file import read_settings
from mlx_attn.cli.train_options import SHORTHANDS, TRAIN_OPTIONS, SectionedCommand
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.training.settings import Settings, resolve, settings_from

if TYPE_CHECKING:
    from mlx_attn.runs import Run
    from mlx_attn.show.progress import Display
    from mlx_attn.text.corpus import Corpus
    from mlx_attn.training.trainer import Trainer

INTERRUPTED = 130

RESUMABLE = frozenset(
    {"steps", "epochs", "minutes", "eval_every", "save_every", "log_every", "patience", "compile"}
)
"""What may change when a training goes on: how long, and what it reports."""


def train(
    resume: Path | None,
    config: Path | None,
    out: Path | None,
    name: str | None,
    overwrite: bool,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    **flags: Any,
) -> None:
    """Train a tiny GPT with any attention.

    Without options: the preset `tiny` on stories that are made on the spot, with no network. A flag
    beats an environment variable (MLX_ATTN_STEPS for --steps), which beats the file of --config,
    which beats the preset. Ctrl-C finishes the step, saves, and says how to go on.
    """
    from mlx_attn.show.progress import display_for
    from mlx_attn.show.terminal import stderr_console
    from mlx_attn.show.training import follow, show_plan

    console = stderr_console()
    display = display_for(as_json, quiet, console)
    layer = _layer(flags)
    if resume:
        if out or name or config or overwrite:
            raise ConfigError("--resume goes on in place: leave out --out, --name, --config")
        trainer = _resumed(resume, layer, display)
    else:
        settings = resolve(read_settings(config) if config else {}, layer)
        corpus, trainer = _prepared(settings, display)
        if not (as_json or quiet):
            show_plan(trainer, corpus, console)
        if dry_run:
            return
        trainer.run = _new_run(trainer, corpus, _directory(settings, out, name), overwrite)
    with orderly(
        lambda: display.message("finishing this step; Ctrl-C again quits at once")
    ) as asked:
        reason = follow(trainer, display, asked, quiet or as_json)
    if reason == "interrupted":
        click.get_current_context().exit(INTERRUPTED)


def _layer(flags: dict[str, Any]) -> dict[str, Any]:
    """The settings that flags and environment give, shorthands spelled out."""
    given = {key: value for key, value in flags.items() if value is not None}
    for shorthand, maps in SHORTHANDS.items():
        if given.pop(shorthand, False):
            given |= maps
    return given


def _prepared(settings: Settings, display: "Display") -> "tuple[Corpus, Trainer]":
    from mlx_attn.show.downloads import download_lines
    from mlx_attn.text.corpus import prepare
    from mlx_attn.training.trainer import Trainer

    text = settings.text
    progress = download_lines(display.message)
    corpus = prepare(text.data, text.tokenizer, text.vocab_size, progress=progress)
    return corpus, Trainer(settings, corpus)


def _new_run(trainer: "Trainer", corpus: "Corpus", path: Path, overwrite: bool) -> "Run":
    from mlx_attn.runs import create_run
    from mlx_attn.show.machine import versions

    facts = {"corpus": corpus.name, "digest": corpus.digest, "versions": versions()}
    record = trainer.settings.record(trainer.model.config, **facts)
    run = create_run(path, record, overwrite)
    corpus.tokenizer.save(run.path)
    return run


def _directory(settings: Settings, out: Path | None, name: str | None) -> Path:
    """Where the run goes: as told, or a free name in runs/."""
    from mlx_attn.runs import RUNS, free_name

    if out and name:
        raise ConfigError("--out and --name both say where the run goes: use one")
    if out or name:
        return out or RUNS / str(name)
    return free_name(RUNS, f"{settings.preset}-{settings.variant}")


def _resumed(path: Path, layer: dict[str, Any], display: "Display") -> "Trainer":
    """A trainer where an earlier one stopped."""
    from mlx_attn.runs import open_run

    if fixed := sorted(layer.keys() - RESUMABLE):
        raise ConfigError(
            f"{fixed[0]} cannot change when a training goes on; what can: "
            f"{', '.join(sorted(RESUMABLE))}"
        )
    run = open_run(path)
    settings = settings_from(run.settings, layer)
    corpus, trainer = _prepared(settings, display)
    if corpus.digest != run.settings.get("digest"):
        raise RunError(f"{path} was trained on another text than {settings.text.data} holds now")
    trainer.resume(run)
    return trainer


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
""",
)
