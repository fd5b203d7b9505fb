"""Records from files: JSON read against declared types with their bounds, and TOML.

A file may come from elsewhere, from another version or from a damaged disk. So a reader declares
the types that it relies on.
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


def read_bytes(path: Path) -> bytes:
    """Return the content of an ordinary file; a pipe or a device might never end."""
    try:
        if path.exists() and not path.is_file():
            raise RunError(f"{path}: not a file")
        return path.read_bytes()
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror or error})") from error


def read_text(path: Path) -> str:
    """Return the text of a file, without a byte order mark, with every line break as a newline."""
    try:
        return unix_lines(read_bytes(path).decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise RunError(f"{path}: cannot be read ({error})") from error


def unix_lines(text: str) -> str:
    r"""Return the text with \n at every line end: after \r a model would know it for nothing."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_record(path: Path, kind: type[T] = Object) -> T:
    """Return the record in a JSON file.

    Raises:
        RunError: The file cannot be read, or does not hold what `kind` declares; names the place.
    """
    return parse_record(read_text(path), kind, str(path))


def parse_record(text: str, kind: type[T], place: str) -> T:
    """Return the record in a JSON text, which `place` names in messages; see `read_record`."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{place}: damaged ({error})") from error


def read_toml(path: Path) -> Object:
    """Return the tables of a TOML file of a user."""
    try:
        return tomllib.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path}: cannot be read as TOML ({error})") from error


def package_table(package: str, name: str) -> Object:
    """Return the tables of a TOML file that lies in a package of this program."""
    return tomllib.loads((files(package) / f"{name}.toml").read_text(encoding="utf-8"))


def as_record(content: Any, kind: type[T], place: str) -> T:
    """Return plain values as the type that they must have, without keys that it lacks."""
    try:
        return msgspec.convert(content, kind, str_keys=True)
    except ValueError as error:
        raise RunError(f"{place}: damaged ({error})") from error


def check_agrees(recorded: str, expected: Mapping[str, Any], place: str) -> None:
    """Refuse a file whose recorded values differ from this process's, for keys that both have."""
    for key, value in parse_record(recorded, Object, place).items():
        if key in expected and json.dumps(expected[key]) != json.dumps(value):
            raise RunError(
                f"{place}: was saved with {key}={value} and not with {expected[key]}, which "
                "config.json has: put back the file that belongs to the other"
            )


def check_record(content: Any, kind: Any, place: str) -> Any:
    """Return plain values as they are, other keys included; refuse them if they are no `kind`."""
    as_record(content, kind, place)
    return content
