"""`python -m studies.run TEXT RECORDS`: train the study of two sizes, several models at a time.

Each finished training is a line of the file of records. The same command resumes after the last
one, also on another machine; a run that is stopped, perhaps by `timeout`, loses the trainings that
were not finished.
"""

import time
from concurrent.futures import as_completed
from dataclasses import replace
from functools import cache
from pathlib import Path

import click
import msgspec

from mlx_attn.cli.main import signals_interrupt
from mlx_attn.comparison.runner import worker_pool
from mlx_attn.comparison.trial import CURVE_WINDOWS
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.files import write_bytes
from mlx_attn.machine import blas
from mlx_attn.machine.facts import arithmetic, chip_name, source_digest
from mlx_attn.machine.streams import single_stream
from mlx_attn.text.corpus import Corpus, prepare
from mlx_attn.training import events
from mlx_attn.training.loop import train
from mlx_attn.training.optimizers import Muon
from mlx_attn.training.step import TrainStep
from mlx_attn.training.trainer import Diverged, Trainer
from studies.plan import Study, Wanted, registered, wanted, world
from studies.text import check
from studies.trainings import SIZES, Training, read


@click.command()
@click.argument("text", type=click.Path(path_type=Path, exists=True))
@click.argument("records", type=click.Path(path_type=Path))
@click.option("--study", "name", default=SIZES[0], type=click.Choice(SIZES), show_default=True)
@click.option("--workers", default=1, help="Trainings at a time.")
@click.option("--commit", default="", help="The commit of this code, for the records.")
def command(text: Path, records: Path, name: str, workers: int, commit: str) -> None:
    """Add the missing trainings to RECORDS, on the TEXT that `python -m studies text` wrote."""
    study = registered(name)
    check(str(text), text.read_bytes(), study.text.sha256)
    corpus_of(text, study.text.validation)  # so that the workers find it prepared
    with signals_interrupt(), worker_pool(workers) as pool:
        while asked := missing(study, kept(records)):
            futures = [pool.submit(trained, study, one, text, commit) for one in asked]
            for number, future in enumerate(as_completed(futures), 1):
                keep(records, record := future.result())
                click.echo(
                    f"{number} of {len(asked)}: {record.world} {record.arm}, seed {record.seed}, "
                    f"rates x {record.rate:g}: {record.loss or 'diverged'}, {record.seconds} s"
                )


def missing(study: Study, done: list[Training]) -> list[Wanted]:
    """Return the trainings that are asked and not finished, in order and each once."""
    asked = {one.key(study): one for one in wanted(study, done)}
    finished = {training.key for training in done}
    return [one for key, one in asked.items() if key not in finished]


def kept(records: Path) -> list[Training]:
    """Return the finished trainings."""
    return read(records.stem, records.parent) if records.exists() else []


def keep(records: Path, training: Training) -> None:
    """Add a finished training to the file, which is written again so that no line is cut off."""
    before = records.read_bytes() if records.exists() else b""
    write_bytes(records, before + msgspec.json.encode(training) + b"\n")


@cache
def corpus_of(text: Path, count: int) -> Corpus:
    """Return the text, of whose validation split only the first tokens are scored."""
    corpus = prepare(str(text), "char")
    # The first token has no prediction.
    part = replace(corpus.val, tokens=corpus.val.tokens[: count + 1], n_bytes=count + 1)
    return replace(corpus, val=part)


@single_stream()
def trained(study: Study, one: Wanted, text: Path, commit: str) -> Training:
    """Train a model on one thread, and return its record."""
    blas.use_threads(1)
    trainer = Trainer(one.settings(study, text), corpus_of(text, study.text.validation))
    _slow_merged(trainer, study.merged_rate)
    curve, loss, params, begun = [], None, 0, time.perf_counter()
    every = trainer.config.log_every
    try:
        for event in train(trainer):
            match event:
                case events.Started():
                    params = event.params
                case events.Stepped() if event.step <= trainer.steps - every:
                    estimate = trainer.evaluator.estimate(trainer.model, CURVE_WINDOWS)
                    curve.append((event.step, round(estimate, 6)))
                case events.Evaluated(evaluation=last):
                    loss = round(last.val_loss, 6)
                    curve.append((event.step, loss))
    except Diverged:
        loss = None
    facts = arithmetic()
    return Training(
        study=study.name,
        world=world(one.size),
        arm=one.arm,
        seed=one.seed,
        rate=one.rate,
        loss=loss,
        curve=tuple(curve),
        key=one.key(study),
        params=params,
        seconds=round(time.perf_counter() - begun, 1),
        commit=commit,
        tokens=trainer.tokens,
        device=f"{facts['the device']}, {chip_name()}",
        mlx=facts["mlx"],
        products=facts["the rounding of products"],
        source=source_digest(),
    )


def _slow_merged(trainer: Trainer, share: float) -> None:
    """Give the matrices S, if there are any, a share of the rate of Muon's other matrices."""
    groups = trainer.optimizer.groups
    hidden = groups["hidden"]
    own = {name: a for name, a in hidden.views().items() if name.endswith("att.S.weight")}
    if own:
        others = {name: a for name, a in hidden.views().items() if name not in own}
        momentum = trainer.config.muon_momentum
        groups["merged"] = Muon(own, share * hidden.peak, momentum)
        groups["hidden"] = Muon(others, hidden.peak, momentum)
        # The step that the trainer has knows the groups as they were.
        objective = trainer.step.objective
        trainer.step = TrainStep(trainer.optimizer, objective, trainer.config)


if __name__ == "__main__":
    try:
        command(prog_name="python -m studies.run")
    except (ConfigError, RunError) as error:
        raise SystemExit(f"error: {error}") from error
