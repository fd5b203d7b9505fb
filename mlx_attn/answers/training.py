"""Trains what the study asks for, as cheaply as its numbers allow.

The whole validation text is read once, at the end; the learning curve is measured on its beginning;
nothing else is made: no samples, no checkpoints, no probe.
"""

import hashlib
import math
import platform
import sysconfig
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx
import numpy as np

from mlx_attn.about import __version__
from mlx_attn.answers.book import CurvePoint, Record, RecordBook
from mlx_attn.answers.schedule import ArmPlan, wanted_runs
from mlx_attn.answers.study import Run, Study, World
from mlx_attn.arrays import count_parameters, named_arrays
from mlx_attn.comparison import executors
from mlx_attn.errors import RunError
from mlx_attn.files import write_text
from mlx_attn.model.gpt import GPT
from mlx_attn.model.init import jitter
from mlx_attn.text import sources
from mlx_attn.text.corpus import Corpus, Split, prepare
from mlx_attn.text.downloads import data_directory
from mlx_attn.training import events
from mlx_attn.training.evaluation import Evaluator
from mlx_attn.training.loop import train
from mlx_attn.training.trainer import Diverged, Trainer


def data_of(world: World) -> str:
    """What `--data` would be for a world's text; modules are put together in the data directory."""
    if not world.modules:
        return world.settings["data"]
    text = module_text(world.modules)
    path = data_directory() / f"{world.settings['data']}.txt"
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        write_text(path, text)
    return str(path)


def module_text(modules: Sequence[str]) -> str:
    """The source of modules of Python's standard library, one after the other."""
    library = Path(sysconfig.get_path("stdlib"))
    texts: list[str] = []
    for name in modules:
        file = library / f"{name}.py"
        file = file if file.exists() else library / name / "__init__.py"
        if not file.exists():
            raise RunError(f"{file}: this Python has no source of its module {name}")
        texts.append(file.read_text(encoding="utf-8"))
    return "\n".join(texts)


def text_digest(world: World) -> str:
    """The digest of the text that a world has on this machine."""
    return sources.read_source(data_of(world), data_directory()).digest


@cache
def _corpus(data: str, tokenizer: str, vocab_size: int) -> Corpus:
    return prepare(data, tokenizer, vocab_size)


def corpus_of(world: World) -> Corpus:
    """A world's text as tokens.

    Raises:
        RunError: The text is another than the registered one.
    """
    settings = world.settings
    corpus = _corpus(data_of(world), settings["tokenizer"], settings.get("vocab_size", 512))
    if corpus.digest != world.text:
        raise RunError(
            f"{world.settings['data']}: the text has the digest {corpus.digest}, and "
            f"{world.text} is registered: its trainings would not be comparable"
            + (f" (Python {platform.python_version()} is another)" if world.modules else "")
        )
    return corpus


def beginning(split: Split, share: float) -> Split:
    """The first part of a split; it ends where a document does, where documents are known."""
    stop = max(2, int(share * len(split.tokens)))
    starts = split.document_starts
    if starts is not None:
        starts = starts[: max(2, int(np.searchsorted(starts, stop)))]
        stop, starts = int(starts[-1]) + 1, starts[:-1]
    abilities, scored = split.token_abilities, split.scored
    return replace(
        split,
        tokens=split.tokens[:stop],
        document_starts=starts,
        token_abilities=None if abilities is None else abilities[:stop],
        scored=None if scored is None else scored[:stop],
        floor_nats=None,
        ability_floor_nats=split.ability_floor_nats,
    )


def measured(model: GPT, evaluator: Evaluator) -> tuple[float, dict[str, float]]:
    """The loss in nats per token, and by ability of those tokens that call for it.

    Of a task only the tokens that are scored count.
    """
    model.eval()
    losses, split = evaluator.token_losses(model), evaluator.split
    model.train()
    names, abilities = [*(split.ability_floor_nats or {})], split.token_abilities
    if split.scored is not None:
        return float(losses[np.asarray(split.scored, bool)].mean()), {}
    if abilities is None:
        return float(losses[1:].mean()), {}
    found = np.asarray(abilities)[1:]
    counts = np.bincount(found, minlength=len(names))
    sums = np.bincount(found, losses[1:], minlength=len(names))
    means = {n: round(float(s / c), 6) for n, s, c in zip(names, sums, counts, strict=True) if c}
    return float(losses[1:].mean()), means


def train_run(study: Study, run: Run) -> Record:
    """Train one run and measure it."""
    began, world = time.perf_counter(), study.world(run.world)
    corpus = corpus_of(world)
    trainer = Trainer(study.resolved(run, data_of(world)), corpus)
    if study.arms[run.arm].jitter:
        jitter(trainer.model, run.seed)
    start, whole = _weights_digest(trainer.model), trainer.evaluator
    trainer.evaluator = Evaluator(
        beginning(corpus.val, study.protocol.curve_share), whole.context_length
    )
    curve: list[CurvePoint] = []
    loss, abilities, diverged = math.nan, {}, "the loss is not finite"
    try:
        curve.extend(_curve(trainer))
        loss, abilities = measured(trainer.model, whole)
    except Diverged as error:
        diverged = str(error)
    finite = math.isfinite(loss)
    return Record(
        key=study.key(run),
        world=run.world,
        arm=run.arm,
        seed=run.seed,
        scale=run.scale,
        changes=dict(run.changes),
        loss=round(loss, 7) if finite else None,
        abilities=abilities if finite else {},
        curve=tuple(curve),
        diverged="" if finite else diverged,
        params=count_parameters(trainer.model),
        text=corpus.digest,
        start=start,
        machine=machine(),
        seconds=round(time.perf_counter() - began, 2),
    ).sealed()


def _curve(trainer: Trainer) -> Iterator[CurvePoint]:
    """The points of the learning curve, in the course of the training."""
    for event in train(trainer):
        if isinstance(event, events.Stepped):
            loss, abilities = measured(trainer.model, trainer.evaluator)
            yield CurvePoint(
                step=event.step, tokens=event.tokens, loss=round(loss, 6), abilities=abilities
            )


def _weights_digest(model: GPT) -> str:
    content = hashlib.blake2b(digest_size=8)
    for name, array in sorted(named_arrays(model).items()):
        content.update(name.encode() + np.array(array).tobytes())
    return content.hexdigest()


@cache
def machine() -> dict[str, str]:
    """What the numbers were made with: chip, system and versions."""
    device = mx.device_info()
    return {
        "chip": str(device.get("device_name", platform.machine())),
        "device": mx.default_device().type.name,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "mlx": version("mlx"),
        "mlx_attn": __version__,
    }


def train_all(
    study: Study,
    book: RecordBook,
    plans: Callable[[], Sequence[ArmPlan]],
    jobs: int,
    seconds: float = 0.0,
) -> Generator[tuple[Record, int], None, None]:
    """Train what is wanted, several at once; yields each record when it is kept.

    Closing the generator kills what is running; what is finished is kept.

    Args:
        study: What is asked.
        book: Where records are kept.
        plans: The arms that are asked for, most important first, as the records stand.
        jobs: Processes at once.
        seconds: After which no other run is started; 0 is never.

    Yields:
        A record, and how many runs are wanted besides, as far as is known now.
    """
    began, running = time.monotonic(), dict[Future[Record], str]()
    with executors.worker_pool(jobs) as pool:
        while True:
            left = {study.key(run): run for run in wanted_runs(plans())}
            late = bool(seconds) and time.monotonic() - began > seconds
            idle = [] if late else [key for key in left if key not in running.values()]
            with executors.worker_environment():
                for key in idle[: jobs - len(running)]:
                    running[pool.submit(train_run, study, left[key])] = key
            if not running:
                return
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                record = _result(future, left[running.pop(future)])
                book.add(record)
                yield record, len(left) - 1


def _result(future: Future[Record], run: Run) -> Record:
    try:
        return future.result()
    except Exception as error:
        message = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise RunError(
            f"the training of {run.arm} in {run.world}, seed {run.seed}, failed: {message}; "
            "finished ones are kept"
        ) from error
