"""Registrations: each study as it was written down, with a digest, before its trainings.

A later change is an amendment, with its date, its reason and the number of trainings at that time.
All code that reads records first compares the study with the registered one.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from mlx_attn.errors import RunError
from mlx_attn.records import as_record, read_record
from studies.study import Study, digest_of, study_from

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


def read_registration(folder: Path) -> Registration:
    """Read the registration of a folder.

    Raises:
        RunError: The file is missing, or its digest does not match its content.
    """
    file = folder / REGISTRATION
    if not file.exists():
        raise RunError(f"{file} is not there: the study was never registered")
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
