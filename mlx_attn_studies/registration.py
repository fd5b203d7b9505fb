"""Registration: write a study down, with a digest, before any of its trainings.

A later change is an amendment, with its date, its reason and the number of trainings at that time.
All code that reads records first compares the study with the registered one.
"""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from mlx_attn.comparison.plan import digest_of
from mlx_attn.errors import RunError
from mlx_attn.files import write_text
from mlx_attn.records import as_record, read_record
from mlx_attn_studies.book import RecordBook
from mlx_attn_studies.study import OWN, Study, study_from, the_study

REGISTRATION = "registration.json"


class Amendment(msgspec.Struct, frozen=True, kw_only=True):
    """A registered study that was replaced: when, why, and after how many trainings."""

    date: str
    reason: str
    digest: str
    records: int


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """A study as registered; `amendments` are the earlier registrations, oldest first."""

    date: str
    digest: str
    study: Study
    amendments: tuple[Amendment, ...] = ()


def register(
    study: Study, folder: Path, records: int, reason: str = "", today: str = ""
) -> Registration:
    """Write a study to its registration, or return the registration that already holds it.

    Args:
        study: Worlds, arms, questions and protocol.
        folder: Holds the registration and the records.
        records: Number of finished trainings.
        reason: Why the study changes; required once it has trainings.
        today: The date; by default today in UTC.

    Raises:
        RunError: Another study is registered and has trainings, and no reason is given.
    """
    date = today or datetime.now(UTC).date().isoformat()
    before = read_registration(folder) if (folder / REGISTRATION).exists() else None
    amendments = before.amendments if before else ()
    if before and before.study == study:
        return before
    if before and records:
        if not reason:
            raise RunError(
                f"{folder / REGISTRATION}: another study is registered, with {records} trainings: "
                "say with --amend why it changes, or keep its worlds and questions"
            )
        amendments = (
            *amendments,
            Amendment(date=date, reason=reason, digest=before.digest, records=records),
        )
    registration = Registration(date=date, digest=study.digest, study=study, amendments=amendments)
    content = json.dumps(msgspec.to_builtins(registration), indent=1) + "\n"
    write_text(folder / REGISTRATION, content)
    return registration


def register_own(study: Study, folder: Path) -> Registration:
    """Register a study of a user's own text; one that has trainings keeps its registered test.

    Raises:
        RunError: The folder has trainings of another study.
    """
    records = len(RecordBook(folder / "records").records)
    if records:
        protocol = structs.replace(study.protocol, analysis=study_of(folder).protocol.analysis)
        study = structs.replace(study, protocol=protocol)
    if records and study_of(folder).digest != study.digest:
        raise RunError(
            f"{folder}: another study is registered there, with {records} trainings: give this one "
            "a folder of its own with -o, or the settings of that one"
        )
    return register(study, folder, records)


def read_registration(folder: Path) -> Registration:
    """Read the registration of a folder.

    Raises:
        RunError: The file is missing, or its digest does not match its content.
    """
    file = folder / REGISTRATION
    if not file.exists():
        raise RunError(f"{file} is not there: `mlx-attn claims register` first")
    record = read_record(file)
    try:
        written = record.pop("study")
        study = study_from(_without_dropped_key(written))
        registration = as_record({**record, "study": study}, Registration, str(file))
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{file}: not a registration ({error})") from error
    # Digest of the file's content: a later version of the package may have keys that it lacks.
    if registration.digest != digest_of(written):
        raise RunError(f"{file}: its content was changed after it was registered")
    return registration


def _without_dropped_key(written: dict[str, Any]) -> dict[str, Any]:
    """Drop the empty `alternatives` tables that earlier versions wrote."""
    worlds = {
        name: {key: value for key, value in world.items() if (key, value) != ("alternatives", {})}
        for name, world in written["worlds"].items()
    }
    return {**written, "worlds": worlds}


def changes(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Yield the dotted keys in which the tables of two studies differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            yield from changes(before.get(key), after.get(key), f"{path}.{key}".lstrip("."))
    elif before != after:
        yield path


def study_of(folder: Path) -> Study:
    """Return the study of a folder: of a user's own text, or else the package's own study.

    Raises:
        RunError: The folder's registration was changed after it was written.
    """
    if (folder / REGISTRATION).exists():
        written = read_registration(folder).study
        if OWN in written.worlds:
            return written
    return the_study()


def check_registered(study: Study, folder: Path) -> Registration:
    """Return the registration, after checking that it holds this study.

    Raises:
        RunError: The registration is missing, or the study has changed; lists the changed keys.
    """
    registration = read_registration(folder)
    if registration.study != study:
        places = ", ".join(changes(*map(msgspec.to_builtins, (registration.study, study))))
        raise RunError(
            f"{folder / REGISTRATION}: the study is not the registered one: {places} changed"
        )
    return registration
