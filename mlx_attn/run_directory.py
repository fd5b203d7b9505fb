"""A run directory: everything one training leaves behind, readable by every other command.

config.json         settings, versions, digest of the text
metrics.jsonl       one report a line
samples.txt         a sample of the model's text at each validation
tokenizer.*         the tokenizer
model.safetensors   the weights with the lowest validation loss
checkpoint/         the last state: weights, optimizer, progress
track/              weights at tracked steps, of a run that started from another
"""

import json
import os
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any, NotRequired, TypedDict

from mlx_attn import files, records
from mlx_attn.arrays import Arrays, load_arrays, named_arrays, save_arrays
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.model.config import GPTConfig, config_from
from mlx_attn.model.gpt import GPT, gpt_from
from mlx_attn.plugins import check_in_files, check_plugins
from mlx_attn.records import Count, check_agrees, check_record, parse_record, read_record, read_text
from mlx_attn.text.characters import SymbolTokenizer
from mlx_attn.text.corpus import Corpus
from mlx_attn.text.tokenizers import KINDS, Tokenizer, load_tokenizer

CONFIG = "config.json"
_BEFORE_CONFIG = ("tokenizer.*", files.LEFT_BEHIND, ".DS_Store", "._*")
"""The files of a run that was killed while it was made, and a Mac's; config.json is last."""
_RUN_FILES = (
    CONFIG,
    *_BEFORE_CONFIG,
    "metrics.jsonl",
    "samples.txt",
    "model.safetensors",
    "checkpoint",
    "track",
    "report.html",
    "explore.html",
)

_SAVED_WITH = "config"  # in the header of the weights
_SAMPLE_HEADING = re.compile(r"^--- step (\d+)$", re.MULTILINE)


_Value = bool | int | float | str


class _Plugin(TypedDict):
    path: str
    sha256: str
    names: list[str]
    files: NotRequired[dict[str, str]]


_Heads = dict[str, list[list[float]]]


class _Report(TypedDict, total=False):
    """The part of a line of metrics.jsonl that this program reads, or of a conversion's facts."""

    event: str
    step: Count
    steps: Count
    tokens: Count
    loss: float
    val_loss: float | None
    bits_per_byte: float | None
    scores: _Heads
    value_outputs: _Heads
    drift: _Heads | None
    params: Count


class _Settings(TypedDict):
    """The part of config.json that this program reads; each table's keys are checked when used."""

    model: dict[str, _Value]
    training: dict[str, _Value]
    text: dict[str, _Value]
    preset: NotRequired[str]
    variant: NotRequired[str]
    digest: NotRequired[str]
    plugins: NotRequired[list[_Plugin]]
    init_from: NotRequired[str]
    corpus: NotRequired[str]
    converted: NotRequired[_Report]
    imported: NotRequired[_Report]


@dataclass(frozen=True, slots=True)
class Run:
    """One run directory."""

    path: Path
    settings: Mapping[str, Any]  # the content of config.json

    @property
    def name(self) -> str:
        """The directory's name."""
        return self.path.name or self.path.resolve().name  # of "."

    @property
    def corpus(self) -> str:
        """The name of the text that it learned; "" if unknown, as of an imported model."""
        return self.settings.get("corpus", "")

    @property
    def own_settings(self) -> Mapping[str, Any]:
        """The settings, with the run's own tokenizer if the files that they name are gone."""
        text = self.settings["text"]
        named = str(text.get("tokenizer", ""))
        if named in (*KINDS, SymbolTokenizer.kind) or files.user_path(named).exists():
            return self.settings
        return {**self.settings, "text": {**text, "tokenizer": str(self.path)}}

    @property
    def checkpoint(self) -> Path:
        """The file with the last state."""
        return self.path / "checkpoint" / "last.safetensors"

    @property
    def weights(self) -> Path:
        """The file with the best weights."""
        return self.path / "model.safetensors"

    @property
    def config(self) -> GPTConfig:
        """The model's configuration, or a RunError if the file's is damaged."""
        check_plugins(self.settings)
        try:
            return config_from(self.settings["model"])
        except ConfigError as error:
            raise RunError(f"{self.path / CONFIG}: {error}") from error

    def load_model(self, weights: Path | None = None) -> GPT:
        """Return the model with its best weights, ready for evaluation."""
        config, weights = self.config, weights or self.weights
        arrays, facts = load_arrays(weights)
        check_agrees(facts.get(_SAVED_WITH, "{}"), config.as_dict(), str(weights))
        return gpt_from(config, arrays, weights)

    def load_tokenizer(self) -> Tokenizer:
        """Return the tokenizer it was trained with; refuse another, whose ids the model lacks."""
        tokenizer, size = load_tokenizer(self.path), self.settings["model"].get("vocab_size")
        if size is not None and tokenizer.vocab_size != size:
            raise RunError(
                f"{self.path}: its tokenizer has {tokenizer.vocab_size} tokens and its model "
                f"{size}: put the tokenizer back that it was trained with"
            )
        return tokenizer

    def check_corpus(self, corpus: Corpus, way_out: str) -> None:
        """Refuse another text than the run was trained on, or other tokens of it."""
        if self.settings.get("digest") not in (None, corpus.digest):
            raise RunError(
                f"{self.path} was trained on another text than {corpus.name} holds now: {way_out}"
            )
        if self.load_tokenizer().vocabulary != corpus.tokenizer.vocabulary:
            raise RunError(
                f"{self.path} has another vocabulary than {corpus.name} gets now, perhaps from "
                f"another version of sentencepiece: {way_out}"
            )

    def save_model(self, model: GPT) -> None:
        """Write these weights as the best."""
        facts = {_SAVED_WITH: json.dumps(model.config.as_dict())}
        self.save(self.weights, named_arrays(model), facts)

    def save(self, path: Path, arrays: Arrays, facts: Mapping[str, str]) -> None:
        """Write arrays to a file of the run, with facts about them."""
        self._check_there()
        save_arrays(path, arrays, facts)

    def _check_there(self) -> None:
        """Refuse to write a run whose directory was removed or renamed: it would be made again."""
        if not is_run(self.path):
            raise RunError(f"{self.path} was removed or renamed: put it back, and resume it")

    def add_report(self, record: Mapping[str, Any]) -> None:
        """Add a report to metrics.jsonl."""
        self.append("metrics.jsonl", json.dumps(record, allow_nan=False) + "\n")

    @property
    def reports_digest(self) -> str:
        """Digest of metrics.jsonl; "" if there are no reports."""
        path = self.path / "metrics.jsonl"
        return files.digest(path.read_bytes()) if path.exists() and path.stat().st_size else ""

    def add_sample(self, step: int, text: str) -> None:
        """Add a sample of the model's text after a step to samples.txt."""
        self.append("samples.txt", f"--- step {step}\n{text}\n\n")

    @property
    def samples(self) -> str:
        """The samples so far, exactly, without the end of a last one that a full disk cut short."""
        path = self.path / "samples.txt"
        text = records.read_bytes(path).decode(errors="ignore") if path.exists() else ""
        return "".join(text.rpartition("\n\n")[:2])

    def append(self, file: str, text: str) -> None:
        """Add text to the end of a file of the run, such as metrics.jsonl."""
        self._check_there()
        try:
            with (self.path / file).open("a", encoding="utf-8") as stream:
                stream.write(text)
        except OSError as error:
            raise files.unwritable(self.path / file, error) from error

    def metrics(self) -> list[dict[str, Any]]:
        """Return the reports written so far; a last line cut short by a crash is left out."""
        path = self.path / "metrics.jsonl"
        reports: list[dict[str, Any]] = []
        for number, line in enumerate(read_text(path).split("\n")[:-1] if path.exists() else [], 1):
            place = f"{path}, line {number}"
            reports.append(check_record(parse_record(line, dict, place), _Report, place))
        return reports

    def was_cut_off(self) -> bool:
        """Tell whether its training began and never ended, not even by an interruption."""
        began = {"converted", "imported"}.isdisjoint(self.settings)
        return began and all(report.get("event") != "end" for report in self.metrics())

    def is_finished(self) -> bool:
        """Tell whether its training came to its end; so did a converted or imported model's."""
        return self.weights.exists() and has_ended(self.metrics())

    def forget_after(self, step: int, to_come: Container[str] = ()) -> None:
        """Drop the reports and samples that a training resumed after a step will write again.

        These are the final report, the reports of later steps, and the step's own whose event is
        `to_come`: the checkpoint is older than they are.
        """

        def stays(event: Any, at: int) -> bool:
            return at < step or (at == step and event not in to_come)

        reports = [r for r in self.metrics() if "step" in r and stays(r.get("event"), r["step"])]
        lines = (json.dumps(report) + "\n" for report in reports)
        files.write_text(self.path / "metrics.jsonl", "".join(lines))
        headings = _SAMPLE_HEADING.finditer(samples := self.samples)
        later = (h.start() for h in headings if not stays("eval", int(h[1][:20])))
        files.write_text(self.path / "samples.txt", samples[: next(later, None)])

    def with_settings(self, settings: Mapping[str, Any]) -> "Run":
        """Return the run with other settings in its config.json."""
        text = json.dumps(settings, indent=1, sort_keys=True, allow_nan=False)
        files.write_text(self.path / CONFIG, text + "\n")
        return replace(self, settings=settings)


def best_of(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the report with the lowest validation loss; {} without any."""
    validations = [report for report in reports if report.get("val_loss") is not None]
    return min(validations, key=lambda report: report["val_loss"], default={})


def has_ended(reports: Sequence[Mapping[str, Any]]) -> bool:
    """Tell from its reports whether a training came to its end; without any, there was none."""
    last = reports[-1] if reports else {"event": "end"}
    return last.get("event") == "end" and last.get("reason") != "interrupted"


@contextmanager
def new_run(
    path: Path,
    settings: Mapping[str, Any],
    overwrite: bool = False,
    tokenizer: Tokenizer | None = None,
) -> Iterator[Run]:
    """Make a run directory, and hold it until the block ends.

    An overwritten run loses its own files first, config.json at the end, and keeps all others.

    Raises:
        RunError: It cannot be written, another process holds it, there is a run that is not to be
            overwritten, or the directory there does not hold a run.
        ConfigError: It uses choices that no file holds.
    """
    check_in_files(settings.get("plugins", ()))
    check_free(path, overwrite)
    with files.lock(path):
        remove_own_files(path)
        if tokenizer:
            tokenizer.save(path)
        run = Run(path, settings).with_settings(settings)
        try:
            yield run
        except BaseException:
            if not (run.weights.exists() or run.reports_digest):  # a conversion or an import
                remove_own_files(path)
            raise


def remove_own_files(path: Path) -> None:
    """Remove all that is a run's own in its directory.

    config.json goes last: a removal that is cut short leaves a run that can be removed again.
    """
    files_of_run = [file for file in path.glob("*") if any(map(file.match, _RUN_FILES))]
    for file in sorted(files_of_run, key=lambda file: file.name == CONFIG):
        files.remove(file)


@contextmanager
def held(run: Run) -> Iterator[Run]:
    """Lock a run's directory until the block ends, to continue writing to it."""
    with files.lock(run.path):
        yield open_run(run.path)


def check_free(path: Path, overwrite: bool) -> None:
    """Refuse a place where a new run must not go."""
    if not path.exists():
        return
    if path.is_dir() and all(any(map(file.match, _BEFORE_CONFIG)) for file in path.iterdir()):
        return
    if not overwrite:
        raise RunError(
            f"{path} exists: train --resume {quote(str(path))} continues it, --overwrite replaces "
            "it, --out names another directory",
            f"{path} exists: mlx_attn.resume({str(path)!r}) continues it, overwrite=True replaces "
            "it, another name makes another run",
        )
    if not is_run(path):
        raise RunError(f"{path} is not a run directory, so --overwrite leaves it alone")
    open_run(path)


def is_run(path: Path) -> bool:
    """Tell whether there is a config.json, even a damaged one."""
    return (path / CONFIG).is_file()


def open_run(path: Path) -> Run:
    """Return the run in a directory."""
    if not is_run(path):
        near = ", ".join(str(run) for run in (find_runs(path) or find_runs(path.parent))[:3])
        raise RunError(f"{path} is not a run directory{f' (there are: {near})' if near else ''}")
    if _is_foreign(path / CONFIG):
        raise RunError(
            f"{path} holds a model for other programs: 'mlx-attn import {quote(str(path))}' makes "
            "a run of it"
        )
    settings = check_record(read_record(path / CONFIG), _Settings, str(path / CONFIG))
    return Run(path, settings)


def find_runs(directory: Path) -> list[Path]:
    """Return the run directories in a directory, the latest first, without exported folders."""
    runs = [
        file for file in directory.glob(f"*/{CONFIG}") if file.is_file() and not _is_foreign(file)
    ]
    return [file.parent for file in sorted(runs, key=lambda f: f.stat().st_mtime, reverse=True)]


def _is_foreign(config: Path) -> bool:
    # A file that may not be read is listed, and opening it gives the reason.
    return os.access(config, os.R_OK) and b'"architectures"' in config.read_bytes()[: 2**16]
