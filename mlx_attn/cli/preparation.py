"""What `mlx-attn train` does before the first step: a trainer and the directory of its run.

A trainer is new, goes on where an earlier one stopped, or starts from another run's weights.
"""

import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlx_attn.errors import ConfigError, RunError
from mlx_attn.training.settings import Settings, layer_from, settings_from

if TYPE_CHECKING:
    from mlx_attn.runs import Run
    from mlx_attn.show.progress import Display
    from mlx_attn.text.corpus import Corpus
    from mlx_attn.text.tokenizers import Tokenizer
    from mlx_attn.training.ranks import Ranks
    from mlx_attn.training.trainer import Trainer


def new_trainer(
    settings: Settings | None, display: "Display", ranks: "Ranks"
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
    from mlx_attn.show.downloads import download_lines, tokenizing_lines
    from mlx_attn.text.corpus import prepare

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


def settings_of_first(settings: Settings | None, ranks: "Ranks") -> Settings:
    """Rank 0's settings, on every rank; rank 0 must give them."""
    record = ranks.first(asdict(settings) if settings else None)
    return settings or settings_from(record, {})


def resumed_trainer(
    name: str, changes: dict[str, Any], display: "Display", ranks: "Ranks"
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
    from mlx_attn.lab.starting import starting_point

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
        from mlx_attn.runs import create_run
        from mlx_attn.show.machine import versions

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
