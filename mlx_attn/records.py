"""The one door for records from files: JSON read against declared types with their bounds, TOML.

What a file holds may come from elsewhere, from another version or from a damaged disk. Whoever
reads one declares the types that it relies on; everything else about the file is decided here.
"""

import json
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from mlx_attn.errors import RunError

T = TypeVar("T")

Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
"""A number of things."""
Seconds = Annotated[float, msgspec.Meta(ge=0)]
Object = dict[str, Any]
"""A JSON object of which nothing is relied on."""


def read_text(path: Path) -> str:
    """The text of a file.

    Raises:
        RunError: It cannot be read, or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunError(f"{path}: cannot be read ({reason})") from error


def read_record(path: Path, kind: type[T] = Object) -> T:
    """The record in a JSON file.

    Raises:
        RunError: The file cannot be read, or does not hold what `kind` declares; names the place.
    """
    return parse_record(read_text(path), kind, str(path))


def parse_record(text: str, kind: type[T], place: str) -> T:
    """The record in a JSON text, which `place` names in messages; see `read_record`."""
    try:
        return as_record(json.loads(text, parse_constant=_refuse), kind, place)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{place}: damaged ({error})") from error


def read_toml(path: Path) -> Object:
    """The tables of a TOML file of a user.

    Raises:
        RunError: It cannot be read, or is no TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path}: cannot be read as TOML ({error})") from error


def package_table(package: str, name: str) -> Object:
    """The tables of a TOML file that lies in a package of this program."""
    return tomllib.loads((files(package) / f"{name}.toml").read_text(encoding="utf-8"))


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")


def as_record(content: Any, kind: type[T], place: str) -> T:
    """Plain values as the type that they must have; keys that it does not declare are left out."""
    try:
        return msgspec.convert(content, kind, str_keys=True)
    except ValueError as error:
        raise RunError(f"{place}: damaged ({error})") from error


def check_agrees(recorded: str, own: Mapping[str, Any], place: str) -> None:
    """Compare what a file recorded, as JSON, with values of this process: keys that both have.

    Raises:
        RunError: They differ: the file belongs to other settings.
    """
    for key, value in parse_record(recorded, Object, place).items():
        if key in own and json.dumps(own[key]) != json.dumps(value):
            raise RunError(
                f"{place}: was saved with {key}={value} and not with {own[key]}, which config.json "
                "says: put back the file that belongs to the other"
            )


def check_record(content: Any, kind: Any, place: str) -> Any:
    """Plain values as they are, other keys included, once they are what `kind` declares."""
    as_record(content, kind, place)
    return content
