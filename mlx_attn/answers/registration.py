"""Registration: a study is written down, with a digest, before anything of it is trained.

A later change is an amendment, with date, reason and the number of trainings so far. Readers of
records compare the study with its registration.
"""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from mlx_attn.answers.study import OWN, Study, study_from, the_study
from mlx_attn.comparison.plan import digest_of
from mlx_attn.errors import RunError
from mlx_attn.files import write_text
from mlx_attn.records import as_record, read_record

REGISTRATION = "registration.json"


class Amendment(msgspec.Struct, frozen=True, kw_only=True):
    """A registered study that another one replaced: when, why, and how much was trained then."""

    date: str
    reason: str
    digest: str
    records: int


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """A study as it was registered; `amendments` are what stood before, the latest last."""

    date: str
    digest: str
    study: Study
    amendments: tuple[Amendment, ...] = ()


def register(
    study: Study, folder: Path, records: int, reason: str = "", today: str = ""
) -> Registration:
    """Write a study down.

    Args:
        study: Questions, arms, margins, seeds and expectations.
        folder: The folder of the registration and the records.
        records: How many trainings there are.
        reason: Why a study that has trainings is changed.
        today: The date; by default the current one.

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
    found = Registration(date=date, digest=study.digest, study=study, amendments=amendments)
    content = json.dumps(msgspec.to_builtins(found), indent=1) + "\n"
    write_text(folder / REGISTRATION, content)
    return found


def read_registration(folder: Path) -> Registration:
    """Return the registration of a folder.

    Raises:
        RunError: It is missing, or its digest does not fit its content.
    """
    file = folder / REGISTRATION
    if not file.exists():
        raise RunError(f"{file} is not there: `mlx-attn claims register` first")
    record = read_record(file)
    try:
        written = record.pop("study")
        study = study_from(_known(written))
        found = as_record({**record, "study": study}, Registration, str(file))
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{file}: not a registration ({error})") from error
    # The digest covers the written keys: a later version of this package may add keys.
    if found.digest != digest_of(written):
        raise RunError(f"{file}: its content was changed after it was registered")
    return found


def _known(written: dict[str, Any]) -> dict[str, Any]:
    """Drop a key of earlier versions if it is empty."""
    worlds = {
        name: {key: value for key, value in world.items() if (key, value) != ("alternatives", {})}
        for name, world in written["worlds"].items()
    }
    return {**written, "worlds": worlds}


def changes(before: Study, after: Study) -> Iterator[str]:
    """Yield the keys in which two studies differ."""
    yield from _changes(msgspec.to_builtins(before), msgspec.to_builtins(after), "")


def _changes(before: Any, after: Any, path: str) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            yield from _changes(before.get(key), after.get(key), f"{path}.{key}".lstrip("."))
    elif before != after:
        yield path


def study_of(folder: Path) -> Study:
    """Return the study of a folder: of a user's own text, or this package's.

    Raises:
        RunError: The folder's registration was changed after it was written.
    """
    if (folder / REGISTRATION).exists():
        written = read_registration(folder).study
        if OWN in written.worlds:
            return written
    return the_study()


def check_registered(study: Study, folder: Path) -> Registration:
    """Return the registration, if it is of this study.

    Raises:
        RunError: It is missing, or the study was changed since; the message names the keys.
    """
    found = read_registration(folder)
    if found.study != study:
        places = ", ".join(changes(found.study, study))
        raise RunError(
            f"{folder / REGISTRATION}: the study is not the registered one: {places} changed"
        )
    return found
