"""`mlx-attn train`: settings from every layer, the text, the trainer, and Ctrl-C.

The flags ask for a new training, possibly with another run's weights, or resume one; under
mlx.launch each of several processes runs this command.
"""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from mlx_attn.cli.main import INTERRUPTED, StopRequested, graceful_interrupt, read_settings
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


def train(dry_run: bool, as_json: bool, quiet: bool, log_to: str | None, **options: Any) -> None:
    """Train a tiny GPT with any attention.

    Without options: the preset `tiny` on stories that are generated on the spot, with no network. A
    flag overrides an environment variable (MLX_ATTN_STEPS for --steps), which overrides the file of
    --config, which overrides the preset. Ctrl-C finishes the step, saves, and prints the command
    that resumes. Under mlx.launch all processes train one model: each takes its part of every
    batch.
    """
    from mlx_attn.training.show import Display, display_for
    from mlx_attn.training.trainer import Trainer
    from mlx_attn.ui.terminal import stderr_console

    ranks = connect()
    with prefix_errors(ranks):
        if not ranks.rank:
            display = display_for(as_json, quiet, stderr_console())
            _lead(ranks, OutputOptions(display, dry_run, as_json, quiet, log_to), **options)
            return
        display = Display(stderr_console(), "silent")
        settings = _agreed_settings(None, ranks)
        corpus = _prepared_text(settings, display)
        # Rank 0 sends its weights: see Trainer.join.
        trainer = Trainer(settings, corpus, ranks, draw=False)
        if not dry_run:
            _train(trainer, corpus, display)


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """The display, and flags that change no number of a training."""

    display: "Display"
    dry_run: bool  # show the plan and stop
    as_json: bool  # events as JSON on stdout
    quiet: bool  # no progress
    log_to: str | None  # one of training.loggers.LOGGERS

    def show_plan(self, trainer: "Trainer", corpus: "Corpus") -> None:
        """Show the plan: a result if it is all that is wanted, otherwise a message."""
        from mlx_attn.training.forecast import forecast
        from mlx_attn.training.show import plan_facts, plan_rows
        from mlx_attn.ui.terminal import print_rows, stderr_console, stdout_console

        single = trainer.ranks.size == 1
        expected = forecast(trainer, corpus) if self.dry_run and single else None
        rows = plan_rows(trainer, corpus, expected)
        if self.dry_run and self.as_json:
            say(json.dumps(plan_facts(trainer, corpus, expected)))
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
    replicas: str | None,
    **options: Any,
) -> None:
    """Run the first process's options."""
    from mlx_attn.runs import find_run

    if replicas:
        raise ConfigError(
            "--replicas is gone: use mlx-attn compare --seeds N, which trains several seeds and "
            "judges their differences, or one train --seed for each"
        )
    environment, flags = _layers(options)
    if resume:
        if out or name or config or overwrite or init_from:
            raise ConfigError(
                "--resume continues a run in place: leave out --out, --name, --config and "
                "--init-from"
            )
        # The environment's other settings are for new runs.
        changes = {k: v for k, v in environment.items() if k in RESUMABLE} | flags
        _resume(resume, changes, ranks, output)
        return
    if init_from and "preset" in flags:
        raise ConfigError("--init-from takes all settings from its run: leave out --preset")
    start = find_run(init_from) if init_from else None
    below = layer_from(start.settings) if start else {}
    settings = resolve(below, read_settings(config) if config else {}, environment, flags)
    is_named = bool(out or name)
    target = RunTarget(_new_directory(settings, out, name), overwrite, init_from, is_named)
    _train_new(settings, target, start, ranks, output)


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


def _new_directory(settings: Settings, out: Path | None, name: str | None) -> Path:
    """Return the directory of a new run: as told, or a free name in runs/."""
    from mlx_attn.runs import RUNS, free_name

    if out and name:
        raise ConfigError("--out and --name both say where the run goes: use one")
    if name and (name != Path(name).name or not name.isprintable()):
        raise ConfigError("--name is one name in runs/: --out names a directory elsewhere")
    if not (out or name):
        return free_name(RUNS, settings.run_name)
    return out or RUNS / user_path(str(name))


@dataclass(frozen=True, slots=True)
class RunTarget:
    """The directory of a run, and the run that it starts from."""

    path: Path  # the directory
    overwrite: bool = False  # whether a run there is replaced
    init_from: str | None = None  # the run that it starts from
    # Whether the user chose the name; another free one will do where it is not.
    is_named: bool = True

    def record(self, trainer: "Trainer", corpus: "Corpus") -> "Run":
        """Return the run directory with its settings; a new one gets the tokenizer, too.

        This process holds it until the command ends.
        """
        from mlx_attn.api.trained import resumed_record
        from mlx_attn.files import Locked
        from mlx_attn.machine.facts import versions
        from mlx_attn.run_directory import Taken, new_run
        from mlx_attn.runs import free_name

        facts = {"corpus": corpus.name, "digest": corpus.digest, "versions": versions()}
        facts |= {"init_from": self.init_from} if self.init_from else {}
        record = trainer.settings.record(trainer.model.config, **facts)
        if trainer.run:
            return trainer.run.with_settings(resumed_record(trainer.run, record))
        path, hold = self.path, click.get_current_context().with_resource
        while True:
            try:
                return hold(new_run(path, record, self.overwrite, corpus.tokenizer))
            except (Taken, Locked):  # by a training that began after this one
                if self.is_named:
                    raise
                path = free_name(path.parent, trainer.settings.run_name)


def _train_new(
    settings: Settings,
    target: RunTarget,
    start: "Run | None",
    ranks: "Distributed",
    output: OutputOptions,
) -> None:
    from mlx_attn import run_directory
    from mlx_attn.training.trainer import Trainer

    run_directory.check_free(target.path, target.overwrite)
    corpus = _prepared_text(_agreed_settings(settings, ranks), output.display)
    trainer = Trainer(settings, corpus, ranks, draw=not output.dry_run)
    if start:
        from mlx_attn.convert.model import start_from_run

        start_from_run(trainer, start, corpus)
    _show_and_train(trainer, corpus, target, output)


def _resume(
    name: str, changes: dict[str, Any], ranks: "Distributed", output: OutputOptions
) -> None:
    from mlx_attn.api.trained import continue_run, resumed_settings
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
    corpus = _prepared_text(_agreed_settings(settings, ranks), output.display)
    has_checkpoint = run.checkpoint.exists()
    trainer = Trainer(settings, corpus, ranks, draw=not has_checkpoint)
    run.check_corpus(corpus, "name the old one with --data, or train a new run")
    if not has_checkpoint:
        output.display.message(
            f"{run.path} was stopped before its first checkpoint: it begins again"
        )
    continue_run(trainer, run, corpus)
    _show_and_train(trainer, corpus, RunTarget(run.path), output)


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


def _show_and_train(
    trainer: "Trainer", corpus: "Corpus", target: RunTarget, output: OutputOptions
) -> None:
    """Show the plan, and train unless that is all that is wanted."""
    from mlx_attn.training.loggers import check_logger, logging_to

    check_logger(output.log_to or "")
    output.show_plan(trainer, corpus)
    if output.dry_run:
        return
    trainer.run = target.record(trainer, corpus)
    with logging_to(output.log_to or "", trainer.run) as trainer.log:
        _train(trainer, corpus, output.display)


def _train(trainer: "Trainer", corpus: "Corpus", display: "Display") -> None:
    """Train to the end; once interrupted, save and exit with 130."""
    from mlx_attn.training import loop
    from mlx_attn.training.show import follow, what_is_saved

    def to_the_end(should_stop: StopRequested) -> str:
        reason = follow(trainer, corpus.tokenizer, display, should_stop)
        # mlx.launch ends all ranks when the first one exits: wait until rank 0 has saved and
        # printed everything.
        trainer.ranks.gather("done")
        return reason

    announce = "finishing this step; Ctrl-C again quits at once"
    try:
        with graceful_interrupt(lambda: display.message(announce)) as should_stop:
            reason = to_the_end(should_stop)
    except KeyboardInterrupt:
        display.message(what_is_saved(trainer))
        reason = loop.INTERRUPTED
    if reason == loop.INTERRUPTED:
        click.get_current_context().exit(INTERRUPTED)


def _at_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


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
