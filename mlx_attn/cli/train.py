"""`mlx-attn train`: settings from every layer, the text, the trainer, and Ctrl-C.

The flags ask for a new training, possibly with another run's weights, or resume one; under
mlx.launch each of several processes runs this command.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from mlx_attn.cli.main import INTERRUPTED, graceful_interrupt, read_settings
from mlx_attn.cli.options import FIRST_OPTIONS, SHORTHANDS, TRAIN_OPTIONS, SectionedCommand
from mlx_attn.cli.output import say
from mlx_attn.cli.processes import connect, prefix_errors
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.files import user_path
from mlx_attn.plugins import used_plugins
from mlx_attn.training.config import RESUMABLE, Settings, layer_from, resolve, settings_from

if TYPE_CHECKING:
    from mlx_attn.run_directory import Run
    from mlx_attn.text.corpus import Corpus
    from mlx_attn.training.distributed import Distributed
    from mlx_attn.training.show import Display
    from mlx_attn.training.trainer import Trainer

    # A trainer, its text, and what opens the run once the training begins.
    Prepared = tuple[Trainer, Corpus, Callable[[], Run]]


def train(dry_run: bool, as_json: bool, quiet: bool, log_to: str | None, **options: Any) -> None:
    """Train a tiny GPT with any attention.

    Without options: the preset `tiny` on stories that are generated on the spot, with no network. A
    flag overrides an environment variable (MLX_ATTN_STEPS for --steps), which overrides the file of
    --config, which overrides the preset. Ctrl-C finishes the step, saves, and prints the command
    that resumes. Under mlx.launch all processes train one model: each takes its part of every
    batch.
    """
    from mlx_attn.training.recording import load_logger, logging_to
    from mlx_attn.training.show import Display, display_for
    from mlx_attn.training.trainer import Trainer
    from mlx_attn.ui.terminal import stderr_console

    ranks = connect()
    with prefix_errors(ranks):
        if ranks.rank:
            display = Display(stderr_console(), "silent")
            settings = _agreed_settings(None, ranks)
            corpus = _prepared_text(settings, display)
            # Rank 0 sends its weights: see Trainer.join.
            trainer = Trainer(settings, corpus, ranks, draw=False)
            if not dry_run:
                _train(trainer, corpus, display)
            return
        display = display_for(as_json, quiet, stderr_console())
        trainer, corpus, open_run = _prepare(ranks, display, dry_run, **options)
        if log_to:
            load_logger(log_to)
        _show_plan(trainer, corpus, dry_run, as_json, quiet)
        if dry_run:
            return
        trainer.run = open_run()
        with logging_to(log_to or "", trainer.run) as trainer.log:
            _train(trainer, corpus, display)


def _prepare(
    ranks: "Distributed",
    display: "Display",
    dry_run: bool,
    *,
    resume: str | None,
    init_from: str | None,
    config: Path | None,
    out: Path | None,
    name: str | None,
    overwrite: bool,
    replicas: str | None,
    **options: Any,
) -> "Prepared":
    """Return what the options of the first process ask for."""
    from mlx_attn.api.trained import facts_of
    from mlx_attn.convert.model import start_from_run
    from mlx_attn.run_directory import check_free, new_run
    from mlx_attn.runs import RUNS, find_run, free_name
    from mlx_attn.training.trainer import Trainer

    environment, flags = _layers(options)
    refusals = {
        "--replicas is gone: use mlx-attn compare --seeds N, which trains several seeds and "
        "judges their differences, or one train --seed for each": replicas,
        "--resume continues a run in place: leave out --out, --name, --config and "
        "--init-from": resume and (out or name or config or overwrite or init_from),
        "--init-from takes all settings from its run: leave out --preset": (
            init_from and "preset" in flags
        ),
        "--out and --name both say where the run goes: use one": out and name,
        "--name is one name in runs/: --out names a directory elsewhere": (
            name and (name != Path(name).name or not name.isprintable())
        ),
    }
    for message, applies in refusals.items():
        if applies:
            raise ConfigError(message)
    if resume:
        # The environment's other settings are for new runs.
        changes = {key: value for key, value in environment.items() if key in RESUMABLE}
        return _resume(resume, changes | flags, ranks, display)
    start = find_run(init_from) if init_from else None
    below = layer_from(start.settings) if start else {}
    settings = resolve(below, read_settings(config) if config else {}, environment, flags)
    path = out or (RUNS / user_path(name) if name else None)
    if path:
        check_free(path, overwrite)
    corpus = _prepared_text(_agreed_settings(settings, ranks), display)
    trainer = Trainer(settings, corpus, ranks, draw=not dry_run)
    if start:
        start_from_run(trainer, start, corpus)

    def open_run() -> "Run":
        record = settings.record(trainer.model.config, **facts_of(corpus, init_from))
        place = path or free_name(RUNS, settings.run_name)
        run = new_run(place, record, overwrite, corpus.tokenizer)
        # This process holds the directory until the command ends.
        return click.get_current_context().with_resource(run)

    return trainer, corpus, open_run


def _layers(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of the environment, and of the flags with shorthands expanded."""
    source = click.get_current_context().get_parameter_source
    given = {key: value for key, value in options.items() if value is not None}
    shorthands = {key: SHORTHANDS[key] for key in SHORTHANDS if given.pop(key, False)}
    environment = {k: v for k, v in given.items() if source(k) is ParameterSource.ENVIRONMENT}
    flags = {k: v for k, v in given.items() if k not in environment}
    asked = {key: f"--{key}" for key in flags}
    for name, maps in shorthands.items():
        flag = f"--{name.replace('_', '-')}"
        for key, value in maps.items():
            if flags.get(key, value) != value:
                raise ConfigError(
                    f"{asked[key]} and {flag} do not combine: each says what the {key} map is, "
                    f"{flags[key]} or {value}: leave one out"
                )
            asked[key] = flag
        flags |= maps
    return environment, flags


def _resume(
    name: str, changes: dict[str, Any], ranks: "Distributed", display: "Display"
) -> "Prepared":
    from mlx_attn.api.trained import continue_run, facts_of, resumed_record, resumed_settings
    from mlx_attn.run_directory import held
    from mlx_attn.runs import find_run
    from mlx_attn.training.trainer import Trainer

    run = click.get_current_context().with_resource(held(find_run(name)))
    settings = resumed_settings(run, changes)
    if settings.text.data == "-" and _at_terminal():
        raise RunError(
            f"{run.path} read its text from standard input: pipe the same text in again, or name a "
            "file that holds it with --data"
        )
    corpus = _prepared_text(_agreed_settings(settings, ranks), display)
    has_checkpoint = run.checkpoint.exists()
    trainer = Trainer(settings, corpus, ranks, draw=not has_checkpoint)
    run.check_corpus(corpus, "name the old one with --data, or train a new run")
    if not has_checkpoint:
        display.message(f"{run.path} was stopped before its first checkpoint: it begins again")
    continue_run(trainer, run, corpus)

    def open_run() -> "Run":
        record = settings.record(trainer.model.config, **facts_of(corpus))
        return run.with_settings(resumed_record(run, record))

    return trainer, corpus, open_run


def _agreed_settings(settings: Settings | None, ranks: "Distributed") -> Settings:
    """Return the settings of rank 0, the only rank that must give them.

    Every key of the model is sent, because what a record leaves out is read as version 0.1.0 meant
    it, not as the default of today.

    Raises:
        ConfigError: Ranks have different plugins, or would all read one standard input.
    """
    record = ranks.first(asdict(settings.complete()) if settings else None)
    used = used_plugins({**record["model"], **record["training"], **record["text"]})
    ranks.check_same(plugin=[plugin["sha256"] for plugin in used])
    settings = settings or settings_from(record, {})
    if settings.text.data == "-" and ranks.size > 1:
        raise ConfigError("several ranks cannot read one standard input: name a file with --data")
    return settings


def _prepared_text(settings: Settings, display: "Display") -> "Corpus":
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


def _at_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _show_plan(
    trainer: "Trainer", corpus: "Corpus", dry_run: bool, as_json: bool, quiet: bool
) -> None:
    """Show the plan: a result if it is all that is wanted, otherwise a message."""
    from mlx_attn.training.forecast import forecast
    from mlx_attn.training.show import plan_facts, plan_rows
    from mlx_attn.ui.terminal import print_rows, stderr_console, stdout_console

    expected = forecast(trainer, corpus) if dry_run and trainer.ranks.size == 1 else None
    if dry_run and as_json:
        say(json.dumps(plan_facts(trainer, corpus, expected)))
    elif dry_run or not (as_json or quiet):
        console = stdout_console() if dry_run else stderr_console()
        print_rows(plan_rows(trainer, corpus, expected), console)


def _train(trainer: "Trainer", corpus: "Corpus", display: "Display") -> None:
    """Train to the end; once interrupted, save and exit with 130."""
    from mlx_attn.training import loop
    from mlx_attn.training.show import follow, what_is_saved

    announce = "finishing this step; Ctrl-C again quits at once"
    try:
        with graceful_interrupt(lambda: display.message(announce)) as should_stop:
            reason = follow(trainer, corpus.tokenizer, display, should_stop)
            # mlx.launch ends all ranks when the first one exits: wait until rank 0 has saved and
            # printed everything.
            trainer.ranks.gather("done")
    except KeyboardInterrupt:
        display.message(what_is_saved(trainer))
        reason = loop.INTERRUPTED
    if reason == loop.INTERRUPTED:
        click.get_current_context().exit(INTERRUPTED)


command = SectionedCommand(
    "train",
    callback=train,
    params=[*TRAIN_OPTIONS],
    first=FIRST_OPTIONS,
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
