"""The folder runs/: a run by its name, loaded to be talked to, a list of all, removal."""

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx

from mlx_attn import files, records
from mlx_attn.errors import ConfigError, RunError, did_you_mean
from mlx_attn.keys import check_number
from mlx_attn.machine.operations import cross_entropy
from mlx_attn.model.gpt import GPT
from mlx_attn.run_directory import (
    Run,
    best_of,
    find_runs,
    has_ended,
    is_run,
    open_run,
    remove_own_files,
)
from mlx_attn.sampling.config import SamplerConfig
from mlx_attn.sampling.decoding import DecodingState, TokenStep
from mlx_attn.sampling.generate import (
    GenerationStep,
    StreamingDetokenizer,
    begin,
    prompt_tokens,
    stream_generate,
)
from mlx_attn.sampling.samplers import Sampler
from mlx_attn.text.sources import document_edges
from mlx_attn.text.tokenizers import Tokenizer

RUNS = Path("runs")
"""Where runs land unless told otherwise."""

MOST_TEXTS = 4096
"""Texts of one batch, at most."""


def find_run(name: str | None = None) -> Run:
    """Return a run by its directory or its name in `RUNS`.

    Without a name it is the latest whose training came to its end; if none did, the latest.
    """
    if name is not None:
        return open_run(run_path(name))
    paths = find_runs(RUNS)
    if not paths:
        raise RunError(f"there is no run in {RUNS}: train one with 'mlx-attn train', or name one")
    for path in paths:
        with suppress(RunError):  # a damaged run is not what somebody wants who names none
            if (run := open_run(path)).is_finished():
                return run
    return open_run(paths[0])


@dataclass(frozen=True, slots=True, eq=False)
class LoadedRun:
    """A run, its best weights and its tokenizer."""

    run: Run
    model: GPT
    tokenizer: Tokenizer
    step: TokenStep = field(init=False, repr=False)  # shared by all its texts

    def __post_init__(self):
        object.__setattr__(self, "step", TokenStep(self.model))

    @property
    def name(self) -> str:
        """The run's name."""
        return self.run.name

    @property
    def document_ends(self) -> tuple[str, ...]:
        """Texts at which a document ends, by its tokenizer and the corpus that it learned."""
        ends = (self.tokenizer.end_of_text, document_edges(self.run.corpus)[1])
        return tuple(dict.fromkeys(filter(None, ends)))

    @property
    def start_tokens(self) -> list[int]:
        """The tokens before each document of the text that it learned, and before a prompt."""
        start, _ = document_edges(self.run.corpus)
        try:
            return self.tokenizer.encode(start).tolist() if start else []
        except ConfigError:  # a vocabulary from elsewhere, which lacks them
            return []

    def stream(
        self,
        prompt: str,
        config: SamplerConfig | None = None,
        max_tokens: int = 200,
        stop: Sequence[str] = (),
        count: int = 1,
    ) -> Iterator[GenerationStep]:
        """Return continuations of a prompt, one step a token; the steps' texts add up to them.

        Several are decoded as one batch: text k draws with the seed `config.seed + k`, like a
        single text with this seed, and ends by itself. An empty prompt without a start becomes a
        newline, or token 0 in a vocabulary without one. See `DecodingState` for texts longer than
        the context.

        Args:
            prompt: The text to continue.
            config: How tokens are drawn.
            max_tokens: The most new tokens.
            stop: Texts before which it ends.
            count: Number of continuations.

        Raises:
            ConfigError: Before the first step: a character of the prompt is unknown to the
                tokenizer, or `max_tokens`, `stop` or `count` cannot work.
            RunError: With the first step: the model's logits are not numbers.
        """
        check_number("max_tokens", max_tokens, 1, 2**31 - 1)
        if not 1 <= count <= MOST_TEXTS:
            limits = f"={count} must be at least 1 and at most {MOST_TEXTS}"
            raise ConfigError(f"num_samples{limits}", f"count{limits}")
        context = self.model.config.context_length
        tokens = prompt_tokens(self.tokenizer, prompt, self.start_tokens, context)
        detokenizers = [StreamingDetokenizer(self.tokenizer, stop) for _ in range(count)]
        sampler = Sampler(config or SamplerConfig(), count)
        return stream_generate(DecodingState(self.step), tokens, sampler, detokenizers, max_tokens)


def load_run(name: str | None = None) -> LoadedRun:
    """Return a run by its directory or its name in `RUNS`; None is the latest finished one."""
    run = find_run(name)
    return LoadedRun(run, run.load_model(), run.load_tokenizer())


def text_loss(loaded: LoadedRun, text: list[int]) -> float:
    """Return the mean loss in nats of a text's tokens, read as a document of its own.

    Without a start, the first token has nothing before it and does not count: a single one has the
    loss NaN.
    """
    tokens = begin(text, loaded.start_tokens, loaded.model.config.context_length)
    if len(tokens) < 2:
        return math.nan
    row = mx.array(tokens)[None]
    # [1, T - 1, V], of which the text's own tokens are scored.
    logits = loaded.model(row[:, :-1])[:, -len(text) :].astype(mx.float32)
    losses: list[float] = cross_entropy(logits, row[:, -logits.shape[1] :])[0].tolist()  # type: ignore[assignment]
    return math.fsum(losses) / len(losses)


def run_path(name: str) -> Path:
    """Return the directory of that name, here or in `RUNS`.

    Raises:
        RunError: No run has that name; the message suggests the nearest.
    """
    if paths := [path for path in (files.user_path(name), RUNS / name) if path.is_dir()]:
        return next(filter(is_run, paths), paths[0])  # a folder of another kind hides no run
    names = run_names()
    hint = did_you_mean(name, names) if names else ": train one with 'mlx-attn train'"
    raise RunError(f"there is no run '{name}', here or in {RUNS}{hint}")


def run_names() -> list[str]:
    """Return the names of the runs in `RUNS`, the latest first."""
    return [path.name for path in find_runs(RUNS)]


def free_name(directory: Path, name: str) -> Path:
    """Return a path that does not exist yet: name, name-2, name-3, ..."""
    path, number = directory / name, 2
    while path.exists():
        path, number = directory / f"{name}-{number}", number + 1
    return path


def remove_run(path: Path) -> list[Path]:
    """Remove a run's own files, and its directory if nothing else is in it.

    Returns:
        The files that are not the run's own and stay.

    Raises:
        RunError: It is not a run directory, another process holds it, or a file cannot be removed.
    """
    if not is_run(path):
        raise RunError(f"{path} is not a run directory, so it stays")
    with files.lock(path):
        remove_own_files(path)
        return sorted(path.iterdir())


# A list of runs, without loading the models.


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run in a list of runs."""

    name: str  # as in `run_names`
    path: Path  # the run directory
    changed: float  # when one of its files other than pages last changed, in seconds since 1970
    n_bytes: int  # total size of its files, like `changed` without hidden ones
    variant: str = ""  # name of the attention variant
    text: str = ""  # name of its training text; "" if not recorded
    digest: str = ""  # identifies that text among texts of the same name
    seed: int | None = None  # seed of its batches and weights
    parameters: int | None = None  # trained numbers
    steps: int = 0  # steps done at its last report
    planned: int = 0  # planned steps; 0 if another bound ends the training
    ended: bool = True  # whether its training came to its end; there may have been none
    val_loss: float | None = None  # lowest validation loss, in nats per token
    bits_per_byte: float | None = None  # the same validation's bits per byte
    problem: str = ""  # why the run cannot be used, in one line


def summarise_runs(directory: Path = RUNS) -> list[RunSummary]:
    """Return the runs in a directory, latest first; damaged ones have a `problem`."""
    # Most runs have the tokenizer of others, and opening one takes longer than all the rest.
    opened = set[tuple[Any, ...]]()
    return [_summary(path, opened) for path in find_runs(directory)]


def _summary(path: Path, opened: set[tuple[Any, ...]]) -> RunSummary:
    changed, n_bytes = 0.0, 0
    for file in filter(Path.is_file, path.rglob("[!.]*")):  # a Mac hides its own
        with suppress(OSError):  # files disappear during a training
            state = file.stat()
            n_bytes += state.st_size
            # Pages are written by `open`, not by a training.
            changed = changed if file.suffix == ".html" else max(changed, state.st_mtime)
    facts: dict[str, Any] = {}
    try:
        run = open_run(path)
        seed = run.settings["training"].get("seed")
        facts["variant"] = str(run.settings.get("variant", "custom"))
        facts["text"] = run.corpus
        facts["digest"] = str(run.settings.get("digest", ""))
        # A model that was imported learned with no seed of this run.
        facts["seed"] = seed if isinstance(seed, int) and run.corpus else None
        facts |= _made(run)
        if not run.weights.exists():
            raise RunError("no weights yet: its training came to no validation")
        # The checks come last: the facts that were read before stay.
        content = map(records.read_bytes, sorted(path.glob("tokenizer.*")))
        tokenizer = (run.settings["model"].get("vocab_size"), *content)
        if tokenizer not in opened:
            run.load_tokenizer()
            opened.add(tokenizer)
    except RunError as error:
        facts["problem"] = str(error)
    return RunSummary(path.name, path, changed, n_bytes, **facts)


def _made(run: Run) -> dict[str, Any]:
    """Return the size, steps, end and lowest loss of a training, a conversion or an import."""
    made = run.settings.get("converted") or run.settings.get("imported") or {}
    reports = run.metrics() or [made]
    best = best_of(reports)
    counted = [report["params"] for report in reports if "params" in report]
    planned = [report.get("steps", 0) for report in reports if report.get("event") == "step"]
    return {
        "parameters": counted[-1] if counted else None,
        # The report of the end has as its steps the one at which the training was stopped.
        "steps": max(report.get("step", report.get("steps", 0)) for report in reports),
        "planned": planned[-1] if planned else 0,
        "ended": reports == [made] or has_ended(reports),
        "val_loss": best.get("val_loss"),
        "bits_per_byte": best.get("bits_per_byte"),
    }
