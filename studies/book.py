"""Records of finished trainings: one line of JSON per training, one file per world.

A digest of its content seals every line, so a digit changed by hand or by a failing disk is
detected. Its key is a digest of the settings, so nothing is trained twice.
"""

from collections.abc import Iterator
from itertools import pairwise
from math import inf, log
from pathlib import Path
from typing import Any

import msgspec

from mlx_attn.errors import ConfigError, RunError
from mlx_attn.files import write_text
from mlx_attn.records import content_digest, parse_record, read_text
from studies.study import STEPS, Study

SOLVED = 0.2
"""The loss of a solved task above its floor of 0, in nats per answer: four of five are right."""


class CurvePoint(msgspec.Struct, frozen=True, kw_only=True):
    """A point of a learning curve, measured on the beginning of the validation text."""

    step: int
    tokens: int
    loss: float  # nats per token
    # Nats per token, by the ability that a token needs; empty for texts without them.
    abilities: dict[str, float] = {}


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One finished training."""

    key: str  # `study.Trial.key`
    world: str
    arm: str
    seed: int
    scale: float
    changes: dict[str, Any] = {}
    # Nats per token over the whole validation text; None if the training diverged.
    loss: float | None
    abilities: dict[str, float] = {}  # as in `CurvePoint`, but over the whole validation text
    curve: tuple[CurvePoint, ...] = ()
    diverged: str = ""  # how it diverged; otherwise ""
    params: int
    text: str
    start: str  # digest of all weights before the first step
    # Chip, system and versions; newer records also hold the commit of the clone.
    machine: dict[str, str]
    seconds: float
    seal: str = ""  # digest of everything else

    def value(self, outcome: str = "") -> float:
        """Return the number that a contrast with this `outcome` compares; inf if it diverged.

        Raises:
            RunError: The text has no tokens that need this ability.
        """
        if self.loss is None:
            return inf
        if outcome == STEPS:
            return log(self.steps_to_solve[0])
        if outcome and outcome not in self.abilities:
            raise RunError(f"{self.world}: no token of its text needs the ability {outcome!r}")
        return self.abilities[outcome] if outcome else self.loss

    @property
    def steps_to_solve(self) -> tuple[float, bool]:
        """The steps until the loss falls to `SOLVED`, and True; all steps and False if never.

        The logarithm of the loss is interpolated between two measurements.
        """
        for before, point in pairwise((None, *self.curve)):
            if point is not None and point.loss <= SOLVED:
                if before is None:
                    return float(point.step), True
                share = log(before.loss / SOLVED) / log(before.loss / point.loss)
                return before.step + share * (point.step - before.step), True
        return float(self.curve[-1].step), False

    def sealed(self) -> "Record":
        """Return the record with the seal of its content."""
        return msgspec.structs.replace(self, seal=self.content_digest())

    def is_intact(self) -> bool:
        """Return True if the content still matches the seal."""
        try:
            return self.seal == self.content_digest()
        except UnicodeEncodeError:  # a lone surrogate, which no record is written with
            return False

    def content_digest(self) -> str:
        """Return the seal that belongs to the content."""
        return content_digest(self, "seal")


class RecordBook:
    """All records of a folder, by key.

    Raises:
        RunError: A line is not a record, or was changed after it was written.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.records: dict[str, Record] = {}
        for file in sorted(folder.glob("*.jsonl")):
            for record in _read(file):
                if record.key in self.records:
                    raise RunError(f"{file}: two records of {record.key}: delete one")
                self.records[record.key] = record

    def add(self, *records: Record) -> None:
        """Add records, and replace each file of their worlds in one step."""
        self.records |= {record.key: record for record in records}
        for world in {record.world for record in records}:
            of_world = (record for record in self.records.values() if record.world == world)
            lines = [msgspec.json.encode(record).decode() + "\n" for record in of_world]
            write_text(self.folder / f"{world}.jsonl", "".join(lines))


def _read(file: Path) -> Iterator[Record]:
    for number, line in enumerate(read_text(file).removesuffix("\n").split("\n"), 1):
        try:
            record = parse_record(line, Record, f"{file}, line {number}")
        except RunError as error:
            raise RunError(f"{error}: not a record: delete the line") from error
        if not record.is_intact():
            raise RunError(
                f"{file}, line {number}: {record.arm}, seed {record.seed} was changed after it was "
                "written: restore the line, or delete it to train it again"
            )
        yield record


def complaints(study: Study, book: RecordBook) -> Iterator[str]:
    """Yield a complaint for each record whose settings or text are not those of this study."""
    for record in book.records.values():
        name = f"{record.world}, {record.arm}, seed {record.seed}, rates x {record.scale:g}"
        try:
            trial = study.trial(record.world, record.arm, record.seed, record.scale, record.changes)
        except ConfigError as error:
            yield f"{name}: {error}"
            continue
        if trial.key != record.key:
            yield f"{name}: its key {record.key} is not that of its settings, {trial.key}"
        if trial.text and trial.text != record.text:
            yield f"{name}: it was trained on another text, {record.text}"
