"""A training from Python: a new one, or a run resumed, as a stream of events."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

from rich.text import Text

from mlx_attn import files
from mlx_attn.api.loaded import LoadedModel, load
from mlx_attn.convert.model import start_from_run
from mlx_attn.errors import RunError, python_words
from mlx_attn.machine.facts import versions
from mlx_attn.plugins import Plugins, check_in_files, load_named_plugins
from mlx_attn.probe.tracking import track_heads
from mlx_attn.run_directory import Run, check_free, held, new_run, open_run
from mlx_attn.runs import find_run, run_path
from mlx_attn.text.corpus import Corpus
from mlx_attn.training.config import Settings, layer_from, resolve, settings_from
from mlx_attn.training.events import Ended, Evaluated, Event, Stepped
from mlx_attn.training.recording import train_recorded
from mlx_attn.training.show import closing_lines, draw_losses
from mlx_attn.training.trainer import Trainer
from mlx_attn.ui.plots import figure_for_page
from mlx_attn.ui.terminal import as_html


@dataclass(slots=True)
class Training:
    """A training: iterating it trains and yields events; iterating it again continues.

    Attributes:
        trainer: The model and the settings.
        out: Directory of the run; None keeps nothing.
        overwrite: Whether a run that is there is replaced.
        init_from: The run whose weights it starts from, if any.
        events: Those that have happened.
    """

    trainer: Trainer
    out: Path | None = None
    overwrite: bool = False
    init_from: str | Path | None = None
    events: list[Event] = field(default_factory=list)
    # Digest of the run's reports when it was left; None while it trains, and without a run.
    _reports: str | None = field(init=False, repr=False)

    def __post_init__(self):
        self._reports = self.trainer.run.reports_digest if self.trainer.run else None

    def __iter__(self) -> Iterator[Event]:
        with python_words(), self.open_directory():
            for event in train_recorded(self.trainer):
                self.events.append(event)
                yield event

    def run(self) -> "Training":
        """Train to the end."""
        for _ in self:
            pass
        return self

    @property
    def losses(self) -> Mapping[int, float]:
        """Validation losses in nats per token, by step."""
        evaluated = (event for event in self.events if isinstance(event, Evaluated))
        return {event.step: event.evaluation.val_loss for event in evaluated}

    @property
    @python_words()
    def model(self) -> LoadedModel:
        """The model: with its best weights if the training is kept in a directory, else its last.

        Raises:
            RunError: The training has not begun.
        """
        if not self.events and not self.trainer.progress.step:
            raise RunError("this training has not begun: iterate over it, or call run()")
        if self.trainer.run and self.trainer.progress.best:
            loaded = load(self.trainer.run.path)
            self._check_kept(self.trainer.run)
            return loaded
        self.trainer.model.eval()
        run = Run(Path(self.trainer.settings.variant), self._record())
        return LoadedModel(run, self.trainer.model, self.trainer.corpus.tokenizer)

    @contextmanager
    def open_directory(self) -> Iterator[None]:
        """Hold the run directory, which is made, or gets the settings of a resumed training."""
        if self.out is None:
            yield
            return
        trainer, record = self.trainer, self._record()
        new = self.out, record, self.overwrite, trainer.corpus.tokenizer
        with held(trainer.run) if trainer.run else new_run(*new) as run:
            if trainer.run:
                self._check_kept(run)
                if not self.events:
                    record.pop("plugins", None)  # the files that it began with stay recorded
                    run = run.with_settings({**run.settings, **record})
            trainer.run, self._reports = run, None
            try:
                yield
            finally:
                self._reports = run.reports_digest

    def _check_kept(self, run: Run) -> None:
        """Refuse a directory that another training has written to since this one was left."""
        if self._reports not in (None, run.reports_digest):
            since = f"{run.path} has been trained by another since"
            raise RunError(f"{since}: --resume it again", f"{since}: resume() or load() it")

    def _record(self) -> dict[str, Any]:
        corpus, config = self.trainer.corpus, self.trainer.model.config
        start = {"init_from": str(self.init_from)} if self.init_from else {}
        facts = {"corpus": corpus.name, "digest": corpus.digest, **start}
        return self.trainer.settings.record(config, **facts, versions=versions())

    def __repr__(self) -> str:
        last = self.events[-1] if self.events else None
        if isinstance(last, Ended):
            return "\n".join(closing_lines(last))
        return f"Training({self.trainer.settings.variant}, step {self.trainer.progress.step})"

    def _repr_html_(self) -> str:
        steps = {event.step: event.loss for event in self.events if isinstance(event, Stepped)}
        figure = figure_for_page(partial(draw_losses, steps, self.losses)) if steps else ""
        return str(figure) + as_html(Text(repr(self)))


@python_words()
def train(
    out: str | Path | None = None,
    *,
    overwrite: bool = False,
    init_from: str | Path | None = None,
    plugins: Plugins = (),
    **settings: Any,
) -> Training:
    """Return a training to iterate over, one event at a time.

    Args:
        out: Directory of the run, for every command to use; None keeps nothing.
        overwrite: Replace a run that is there.
        init_from: A run whose weights, text and settings it starts from.
        plugins: Files with your own choices and variants.
        settings: As on the command line, with underscores: preset, variant, data, steps, lr, seed.

    Raises:
        ConfigError: A setting is unknown or cannot work.
        RunError: The directory is taken.
    """
    load_named_plugins(plugins, settings)
    place = None if out is None else files.user_path(out).absolute()
    return new_training([settings], Settings.corpus, place, overwrite, init_from)


@python_words()
def resume(run: str | Path, *, plugins: Plugins = (), **changes: Any) -> Training:
    """Return the training of a run from its last checkpoint on, to iterate over.

    On one Linux machine it gives the bits that a training without the break would have given.

    Args:
        run: Its directory, or its name in runs/.
        plugins: Files with your own choices that it was trained with.
        changes: Settings that may change: steps, epochs, minutes, intervals, compile, data.

    Raises:
        ConfigError: A setting is unknown or must stay as it was.
        RunError: The run does not exist, cannot be resumed, or its text has changed.
    """
    load_named_plugins(plugins, changes)
    path = run_path(str(run)).absolute()
    return resumed_training(open_run(path), changes, Settings.corpus)


# The command line trains and resumes in the same way.


def new_training(
    layers: Sequence[Mapping[str, Any]],
    prepared: Callable[[Settings], Corpus],
    out: Path | None,
    overwrite: bool,
    init_from: str | Path | None,
    *,
    draw: bool = True,
) -> Training:
    """Return the training of a new run, by layers of settings above those of `init_from`.

    `prepared` reads its text; a plan draws no weights.
    """
    start = None if init_from is None else find_run(str(init_from))
    settings = resolve(layer_from(start.own_settings) if start else {}, *layers)
    if out is not None:
        check_free(out, overwrite)
        check_in_files(settings.plugins)
    trainer = Trainer(settings, prepared(settings), draw)
    trainer.choose_compiling()
    track_heads(trainer)
    if start:
        start_from_run(trainer, start)
    if draw:
        trainer.read_weights()
    return Training(trainer, out, overwrite, init_from)


def resumed_training(
    run: Run, changes: Mapping[str, Any], prepared: Callable[[Settings], Corpus]
) -> Training:
    """Return the training of a run from its last checkpoint on, with some settings changed."""
    with held(run) as run:
        has_checkpoint = run.checkpoint.exists()
        if not has_checkpoint and not run.was_cut_off():
            nothing = f"{run.path} has no checkpoint: there is nothing to resume from"
            raise RunError(
                f"{nothing}; --init-from {quote(str(run.path))} trains on from its weights",
                f"{nothing}; train(init_from={str(run.path)!r}) trains on from its weights",
            )
        settings = settings_from(run.own_settings, changes)
        trainer = Trainer(settings, prepared(settings), draw=not has_checkpoint)
        track_heads(trainer)
        run.check_corpus(trainer.corpus, "name the old one with --data, or train a new run")
        trainer.run = run
        if has_checkpoint:
            trainer.resume(run)
        # Else its start follows from its seed and the run that it started from.
        elif start := run.settings.get("init_from"):
            start_from_run(trainer, find_run(start))
        trainer.read_weights()
        # While it is held, because a training remembers how much has been written.
        return Training(trainer, run.path)
