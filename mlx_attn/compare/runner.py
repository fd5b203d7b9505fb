"""Finished trainings on disk: one small file each, named by what was trained.

A training that is there is never done again, so an interrupted comparison goes on where it was, and
another seed or arm costs only its own trainings.
"""

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import mlx.core as mx
import numpy as np

from mlx_attn.attention.attention import on_gpu
from mlx_attn.compare.plan import Trial, corpus_of, floor_of
from mlx_attn.compare.result import Comparison, Point, RankPoint, TrialResult, Tuning, training_from
from mlx_attn.errors import RunError
from mlx_attn.files import write_text
from mlx_attn.sampling.config import SamplerConfig
from mlx_attn.sampling.generate import stream_generate
from mlx_attn.text.corpus import Corpus
from mlx_attn.training.batches import objective_for
from mlx_attn.training.config import Settings, resolve
from mlx_attn.training.distributed import SINGLE_PROCESS, Distributed, LostRank
from mlx_attn.training.events import Ended, Evaluated, Event, Failed, Stepped, Tracked
from mlx_attn.training.loop import INTERRUPTED, never, train
from mlx_attn.training.replicas import (
    VARIED,
    Together,
    check_alike,
    pays_off,
    replicas_of,
    step_seconds,
    train_replicas,
    with_seeds,
)
from mlx_attn.training.trainer import Trainer


@dataclass(frozen=True, slots=True)
class Diverged:
    """A training that ended with a loss that is no number.

    Attributes:
        message: What happened, at which step.
    """

    message: str


Outcome = TrialResult | Diverged


class Store:
    """The finished trainings in a folder.

    Args:
        folder: Made when the first training is kept.
    """

    def __init__(self, folder: Path):
        self.folder = folder

    def __contains__(self, cell: Trial) -> bool:
        return self._path(cell).exists()

    def __getitem__(self, cell: Trial) -> Outcome:
        """What a training came to.

        Raises:
            RunError: Its file is missing or damaged.
        """
        path = self._path(cell)
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            if "diverged" in record:
                return Diverged(record["diverged"])
            return training_from({**record["training"], "lr_scale": cell.lr_scale})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"{path}: not a finished training ({error}); delete the file to train it again"
            ) from error

    def __setitem__(self, cell: Trial, outcome: Outcome) -> None:
        """Keep what a training came to.

        Raises:
            RunError: The file cannot be written.
        """
        result = (
            {"diverged": outcome.message}
            if isinstance(outcome, Diverged)
            else {"training": asdict(outcome)}
        )
        record = {"arm": cell.arm, "settings": dict(cell.settings), **result}
        self.keep(cell, json.dumps(record, indent=1, sort_keys=True) + "\n")

    def text(self, cell: Trial) -> str:
        """The record of a finished training, as another store may keep it.

        Raises:
            RunError: Its file is missing or damaged.
        """
        self[cell]  # refuses a damaged one
        return self._path(cell).read_text(encoding="utf-8")

    def keep(self, cell: Trial, text: str) -> None:
        """Keep what another store gave.

        Raises:
            RunError: The file cannot be written.
        """
        write_text(self._path(cell), text)

    def _path(self, cell: Trial) -> Path:
        return self.folder / f"{cell.digest}.json"


GLANCE = 32
"""Windows that a text is glanced at with, between the beginning and the end."""

_PROMPT_TOKENS, _SAMPLE_TOKENS = 8, 60


def train_trial(cell: Trial, should_stop: Callable[[], bool] = never) -> TrialResult | None:
    """Do a training; None when it was told to stop.

    Raises:
        Diverged: The loss is not finite.
        RunError: The text cannot be read, or has changed.
        ConfigError: The settings cannot work.
    """
    settings = resolve(cell.settings)
    corpus = unchanged_corpus(cell, settings)
    trainer = Trainer(settings, corpus)
    recording = TrialRecorder(cell, trainer, corpus)
    for report in train(trainer, should_stop):
        recording.take(report)
    return recording.training()


def unchanged_corpus(cell: Trial, settings: Settings) -> Corpus:
    """The text of a training.

    Raises:
        RunError: It cannot be read, or is not what it was when the comparison began.
    """
    corpus = corpus_of(settings)
    if corpus.digest != cell.text:
        raise RunError(f"{corpus.name} has changed since the comparison began")
    return corpus


class TrialRecorder:
    """The course of a training, taken down report by report.

    Args:
        cell: What is trained.
        trainer: What trains it, before its first step.
        corpus: On what.
    """

    def __init__(self, cell: Trial, trainer: Trainer, corpus: Corpus):
        self.cell, self.trainer, self.corpus = cell, trainer, corpus
        self._glance = SubsetEvaluator(trainer, corpus)
        self._points: list[Point] = []
        self._ranks: list[RankPoint] = []
        self._ended: Ended | None = None

    def take(self, report: Event) -> None:
        """Note what happened; the model has the weights that it happened to."""
        config, last = self.trainer.config, self.trainer.steps
        match report:
            case Stepped() if not config.eval_every and report.step < last:
                self._points.append(self._glance(report))
            case Evaluated():
                self._points.append(_point(report))
            case Tracked():
                self._ranks.append(_ranks(report))
            case Ended():
                self._ended = report

    def training(self) -> TrialResult | None:
        """The whole, once it ended; None if it was told to stop."""
        ended = self._ended
        if ended is None or ended.reason == INTERRUPTED:
            return None
        last, floor = self._points[-1], floor_of(self.corpus)
        best = ended.evaluation
        return TrialResult(
            seed=self.cell.seed,
            lr_scale=self.cell.lr_scale,
            steps=ended.steps,
            tokens=ended.tokens,
            val_loss=last.val_loss,
            bits_per_byte=best.bits_per_byte if best else None,
            above_floor=None if floor is None else last.val_loss - floor,
            accuracy=last.accuracy,
            abilities=best.abilities if best else {},
            curve=tuple(self._points),
            ranks=tuple(self._ranks),
            tok_s=ended.tok_s,
            seconds=ended.seconds,
            peak_memory=ended.peak_memory,
            sample=_sample(self.trainer, self.corpus),
        )


class SubsetEvaluator:
    """The loss on a few windows of the validation text, spread over it, the same for every arm."""

    def __init__(self, trainer: Trainer, corpus: Corpus):
        self.model, evaluator = trainer.model, trainer.evaluator
        self._objective = objective_for(
            corpus.val, evaluator.context_length, trainer.config.token_memory
        )
        spread = np.linspace(0, len(evaluator.windows) - 1, GLANCE).astype(int)
        self._starts = mx.array(evaluator.windows.start[np.unique(spread)])

    def __call__(self, report: Stepped) -> Point:
        """The loss now; the model goes on training."""
        self.model.eval()
        batch = self._objective.gather(self._objective.fetch(self._starts))
        loss: Any = self._objective.loss(self.model, batch).item()
        self.model.train()
        return Point(step=report.step, tokens=report.tokens, seconds=report.seconds, val_loss=loss)


def _point(report: Evaluated) -> Point:
    return Point(
        step=report.step,
        tokens=report.tokens,
        seconds=report.seconds,
        val_loss=report.evaluation.val_loss,
        accuracy=report.evaluation.accuracy,
    )


def _ranks(report: Tracked) -> RankPoint:
    return RankPoint(
        step=report.step,
        scores=float(np.mean(report.scores["effective_rank"])),
        value_outputs=float(np.mean(report.value_outputs["effective_rank"])),
    )


def _sample(trainer: Trainer, corpus: Corpus) -> str:
    """What the model writes after the first tokens of the validation text, these included."""
    beginning = [int(token) for token in corpus.val.tokens[:_PROMPT_TOKENS]]
    prompt = b"".join(map(corpus.tokenizer.token_bytes, beginning)).decode(errors="ignore")
    trainer.model.eval()
    pieces = stream_generate(
        trainer.model, corpus.tokenizer, prompt, SamplerConfig(temp=0.0), _SAMPLE_TOKENS
    )
    return prompt + "".join(piece.text for piece in pieces)


@dataclass(frozen=True, slots=True)
class Began:
    """A stage begins.

    Attributes:
        stage: What it is for.
        trainings: How many it needs.
        stored: How many of them are finished already.
    """

    stage: str
    trainings: int
    stored: int


@dataclass(frozen=True, slots=True)
class Finished:
    """A training ended.

    Attributes:
        cell: What was trained.
        outcome: What came of it.
        left: Trainings of this stage that are not finished.
        seconds_left: An estimate of the time they take.
    """

    cell: Trial
    outcome: Outcome
    left: int
    seconds_left: float


@dataclass(frozen=True, slots=True)
class Tuned:
    """A learning rate is settled."""

    tuning: Tuning


@dataclass(frozen=True, slots=True)
class Planned:
    """How many seeds there is time for, and what they can be expected to resolve.

    Attributes:
        seeds: Of the verdict.
        minutes: That the rest is expected to take.
        resolves: The smallest true difference, in nats per token, that they would find four times
            out of five; None where nothing is known of the spread yet.
    """

    seeds: int
    minutes: float
    resolves: float | None


@dataclass(frozen=True, slots=True)
class Concluded:
    """The end: what was found."""

    comparison: Comparison


ComparisonEvent = Began | Finished | Tuned | Planned | Concluded


Divide = Callable[[Sequence[Trial]], list[list[Trial]]]
"""Divides trainings into those that one process does."""

MOST = 8
"""Trainings that are done together: what is lost by an interruption, and held in memory."""


def apart(cells: Sequence[Trial]) -> list[list[Trial]]:
    """Every training in a process of its own."""
    return [[cell] for cell in cells]


def of_one_form(cells: Sequence[Trial]) -> list[list[Trial]]:
    """Those that differ in seeds and learning rates alone together, `MOST` at a time.

    With dropout every one is alone: replicas would share one stream of random numbers.
    """
    forms: dict[str, list[Trial]] = {}
    for cell in cells:
        forms.setdefault(_form(cell), []).append(cell)
    return [form[i : i + MOST] for form in forms.values() for i in range(0, len(form), MOST)]


def _form(cell: Trial) -> str:
    if cell.settings.get("drop_rate"):
        return cell.digest
    shared = {key: value for key, value in cell.settings.items() if key not in VARIED}
    return json.dumps([shared, cell.text], sort_keys=True)


_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")

WhenFinished = tuple[Trial, Outcome]


@runtime_checkable
class Runner(Protocol):
    """Whoever does trainings.

    Attributes:
        store: Where the results are kept, and looked for first.
        size: Processes at once.
        way: How they train, for people: "apart", or "as replicas".
    """

    store: Store
    size: int
    way: str

    def missing(self, cells: Iterable[Trial]) -> list[Trial]:
        """Those that are not finished, each once; all others are in the store."""
        ...

    def __call__(self, cells: Iterable[Trial]) -> Generator[WhenFinished, None, None]:
        """Do the trainings that are missing, and yield each as it is finished."""
        ...


class Crew:
    """Processes that train.

    Args:
        store: Where the results are kept, and looked for first.
        size: Processes at once; 0 is one for every core, and one on a GPU.
        divide: Which trainings one process does.
        way: What that is called.
    """

    def __init__(self, store: Store, size: int = 0, divide: Divide = apart, way: str = "apart"):
        self.store, self.way = store, way
        self.size = size or usual_size()
        self._divide = divide
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False

    def missing(self, cells: Iterable[Trial]) -> list[Trial]:
        """Those that the store lacks, each once."""
        wanted = {cell.digest: cell for cell in cells}
        return [cell for cell in wanted.values() if cell not in self.store]

    def __call__(self, cells: Iterable[Trial]) -> Generator[WhenFinished, None, None]:
        """Do the trainings that are missing, and yield each as it is finished.

        Whoever stops listening ends the trainings under way; they are lost, the finished ones not.

        Raises:
            RunError: A process ended without a result.
        """
        for finished in self.rounds(self.missing(cells)):
            yield from finished

    def rounds(
        self, cells: Sequence[Trial], seconds: float | None = None
    ) -> Generator[list[WhenFinished], None, None]:
        """Do trainings, and yield from time to time what was finished since the last time.

        Args:
            cells: The trainings, none of which is finished.
            seconds: From time to time; None is whenever one is finished.

        Raises:
            RunError: A process ended without a result.
        """
        self._stopped = False
        until = FIRST_COMPLETED if seconds is None else FIRST_EXCEPTION
        with ThreadPoolExecutor(self.size) as pool:
            futures = {pool.submit(self._train, batch): batch for batch in self._divide(cells)}
            try:
                left = set(futures)
                while left:
                    done, left = wait(left, seconds, until)
                    yield [self._finished(cell) for f in done for cell in futures[f] if _ended(f)]
            finally:
                self._stop(futures)

    def _finished(self, cell: Trial) -> WhenFinished:
        return cell, self.store[cell]

    def _train(self, batch: Sequence[Trial]) -> None:
        """Train in a process of its own; a session of its own keeps the terminal's Ctrl-C away."""
        command = [sys.executable, "-m", "mlx_attn.compare.worker"]
        order = {"folder": str(self.store.folder), "parent": os.getpid()}
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **dict.fromkeys(_THREADS, "1")},
            start_new_session=True,
        )
        self._running.add(process)
        if self._stopped:
            process.kill()
        try:
            _, complaint = process.communicate(
                json.dumps({**order, "cells": [asdict(cell) for cell in batch]})
            )
        finally:
            self._running.discard(process)
        if process.returncode or self.missing(batch):
            raise _failure(batch, process.returncode, complaint)

    def _stop(self, futures: Iterable[Future[None]]) -> None:
        self._stopped = True
        for future in futures:
            future.cancel()
        for process in list(self._running):
            process.kill()


def usual_size() -> int:
    """Processes at once unless told otherwise: one for every core, and one on a GPU."""
    return 1 if on_gpu() else os.cpu_count() or 1


def _ended(future: Future[None]) -> bool:
    """Whether it ended well.

    Raises:
        RunError: It did not.
    """
    return future.result() is None


def _failure(batch: Sequence[Trial], code: int, complaint: str) -> RunError:
    last = (complaint.strip().splitlines() or ["no message"])[-1]
    seeds = ", ".join(str(cell.seed) for cell in batch)
    return RunError(
        f"the training of '{batch[0].arm}', seed {seeds}, ended with code {code}: {last}; "
        "what is finished is kept, the same command goes on"
    )


TICK = 0.5
"""Seconds between one exchange and the next."""

Working = Generator[Sequence[WhenFinished], None, None]


@runtime_checkable
class Rounds(Protocol):
    """Whoever trains on one rank, and says from time to time what is finished, such as a `Crew`."""

    store: Store
    size: int
    way: str

    def rounds(self, cells: Sequence[Trial], seconds: float) -> Working:
        """Do trainings, and yield every so many seconds what was finished meanwhile."""
        ...


class JoinedCrew:
    """The crews of all ranks.

    Args:
        crew: This rank's.
        ranks: All of them, which do the same comparison.

    Attributes:
        size: Processes at once, on all ranks together.
    """

    def __init__(self, crew: Rounds, ranks: Distributed):
        self.store, self.way = crew.store, crew.way
        self.size = sum(ranks.gather(crew.size))
        self._crew, self._ranks = crew, ranks

    def missing(self, cells: Iterable[Trial]) -> list[Trial]:
        """What no rank has finished; what some have is in every rank's store afterwards.

        Where two have other records of the same training, that of the lower rank counts.

        Raises:
            ConfigError: The ranks do not want the same trainings.
            LostRank: A rank is gone.
        """
        wanted = {cell.digest: cell for cell in cells}
        with _keeping():
            self._ranks.check_same("setting, text, version or kind of device", list(wanted))
            by_rank = self._ranks.gather([self._mark(cell) for cell in wanted.values()])
            marks = dict(zip(wanted, zip(*by_rank, strict=True), strict=True))
            due = [digest for digest, of_ranks in marks.items() if len({*of_ranks}) > 1]
            mine = [digest for digest in due if _giver(marks[digest]) == self._ranks.rank]
            for texts in self._ranks.gather({d: self.store.text(wanted[d]) for d in mine}):
                self._keep(texts, wanted)
        return [wanted[digest] for digest, of_ranks in marks.items() if not any(of_ranks)]

    def __call__(self, cells: Iterable[Trial]) -> Generator[WhenFinished, None, None]:
        """Do this rank's share of what is missing, and yield what is finished on any rank.

        Raises:
            RunError: A process ended without a result, on any rank.
            LostRank: A rank is gone; what is finished is kept by the rank that trained it.
        """
        left = {cell.digest: cell for cell in cells}
        working = self._crew.rounds(self._ranks.share([*left.values()]), TICK)
        try:
            while left:
                for digest in self._news(working, left):
                    cell = left.pop(digest)
                    yield cell, self.store[cell]
        finally:
            working.close()

    def _news(self, working: Working, wanted: Mapping[str, Trial]) -> list[str]:
        """Digests of what was finished since the last time, on any rank; all have it now."""
        own = self._own_news(working)
        with _keeping():
            news = self._ranks.gather(own)
        for rank, (texts, failure) in enumerate(news):
            if rank != self._ranks.rank:
                self._keep(texts, wanted)
                failure = failure and f"rank {rank}: {failure}"
            if failure:
                raise RunError(failure)
        return [digest for texts, _ in news for digest in texts]

    def _own_news(self, working: Working) -> tuple[dict[str, str], str]:
        """What was finished here, as records, and why no more can be."""
        try:
            finished = next(working, None)
        except RunError as error:
            return {}, str(error)
        if finished is None:
            # The others are still at it, and hear nothing until it is time.
            time.sleep(TICK)
        return {cell.digest: self.store.text(cell) for cell, _ in finished or ()}, ""

    def _mark(self, cell: Trial) -> str:
        """The same for the same record; "" where there is none."""
        if cell not in self.store:
            return ""
        return hashlib.blake2b(self.store.text(cell).encode(), digest_size=12).hexdigest()

    def _keep(self, texts: Mapping[str, str], cells: Mapping[str, Trial]) -> None:
        for digest, text in texts.items():
            self.store.keep(cells[digest], text)


def _giver(marks: Sequence[str]) -> int:
    """The lowest rank that has a record."""
    return next(rank for rank, mark in enumerate(marks) if mark)


@contextmanager
def _keeping() -> Iterator[None]:
    """Wherever ranks speak: says what there is to go on from when one is gone."""
    try:
        yield
    except LostRank as lost:
        raise LostRank(f"{lost}; finished trainings are kept: the same command goes on") from lost


def train_together(
    cells: Sequence[Trial], should_stop: Callable[[], bool] = never
) -> Iterator[tuple[Trial, Outcome]]:
    """Do trainings that differ in seeds and learning rates alone; none when told to stop.

    Raises:
        RunError: The text cannot be read, or has changed.
        ConfigError: The settings cannot work, or differ in more.
    """
    settings = [resolve(cell.settings) for cell in cells]
    corpus = unchanged_corpus(cells[0], settings[0])
    # Before the models are made, because it uses up random numbers.
    seconds = step_seconds(settings[0], corpus)
    replicas = replicas_of(settings, corpus)
    pairs = zip(cells, replicas, strict=True)
    recordings = {replica: TrialRecorder(cell, replica, corpus) for cell, replica in pairs}
    for replica, report in train_replicas(replicas, Together(), should_stop):
        recording = recordings[replica]
        if isinstance(report, Failed):
            yield recording.cell, Diverged(report.message)
        elif isinstance(report, Stepped):
            replica.settle()
        recording.take(report)
    for recording in recordings.values():
        if training := recording.training():
            tok_s = recording.trainer.tokens_per_step / seconds
            yield recording.cell, share_of(training, len(cells), tok_s)


def share_of(training: TrialResult, count: int, tok_s: float) -> TrialResult:
    """What one of so many trainings had of the time and memory that all took together.

    Args:
        training: With the time and memory of all.
        count: How many there were.
        tok_s: Tokens per second of one alone; by them go the times of its curve.
    """
    return replace(
        training,
        tok_s=tok_s,
        seconds=training.seconds / count,
        peak_memory=training.peak_memory // count,
        curve=tuple(replace(point, seconds=point.tokens / tok_s) for point in training.curve),
    )


TOGETHER = ("auto", "on", "off")
"""Whether trainings of one form are done together, as replicas."""

Example = Callable[[], Settings | None]
"""Settings of a training such as those to come; None where there are none."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to do trainings.

    Attributes:
        name: For people.
        folder: Where its results are.
        divide: Which trainings one process does.
    """

    name: str
    folder: str
    divide: Divide


WAYS = {
    "off": Way("apart", "trainings", apart),
    "on": Way("as replicas", "replicas", of_one_form),
}


def make_runner(
    directory: Path, jobs: int, together: str, example: Example, ranks: Distributed = SINGLE_PROCESS
) -> Runner:
    """Whoever does the trainings of a comparison.

    Args:
        directory: Where finished trainings are kept, in a folder of their way.
        jobs: Processes at once on every rank; 0 is one for every core, and one on a GPU.
        together: One of `TOGETHER`. With "auto" it is as it was in this directory before; else
            replicas on a GPU, if one process trains at a time and a short trial finds them faster.
        example: A training such as those to come.
        ranks: Processes that share the trainings; rank 0 decides.

    Raises:
        ConfigError: Such trainings cannot be done together.
        LostRank: A rank is gone.
    """
    size = jobs or usual_size()
    decided = "" if ranks.rank else _decided(directory, size, together, example)
    way = WAYS[ranks.first(decided)]
    crew = Crew(Store(directory / way.folder), size, way.divide, way.name)
    return JoinedCrew(crew, ranks) if ranks.size > 1 else crew


def _decided(directory: Path, size: int, together: str, example: Example) -> str:
    """One of `WAYS`."""
    if together == "auto":
        return _as_before(directory) or _faster(size, example)
    settings = example()
    if together == "on" and settings:
        check_alike(with_seeds(settings, MOST))
    return together


def _as_before(directory: Path) -> str:
    """The way of the trainings that a directory has; "" where it has none."""
    ways = (name for name, way in WAYS.items() if any((directory / way.folder).glob("*.json")))
    return next(ways, "")


def _faster(size: int, example: Example) -> str:
    """What a short trial finds faster on a GPU; on a processor, processes side by side are."""
    settings = example() if size == 1 and on_gpu() else None
    if not settings or settings.model.get("drop_rate"):
        return "off"
    return "on" if pays_off(with_seeds(settings, MOST), corpus_of(settings)) else "off"
