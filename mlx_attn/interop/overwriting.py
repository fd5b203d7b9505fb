"""Protect a user's files from an export: check its destination, and keep files of the user.

An exported folder lists the files that export wrote, each with its digest. Every other file, and
any file that was changed since, belongs to the user and stays when the folder is exported again.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mlx_attn import files
from mlx_attn.errors import RunError
from mlx_attn.interop.tokenizer_json import OWN
from mlx_attn.records import read_record

_LIST = f"{OWN}/exported.json"
_OF_THE_SYSTEM = (f"{OWN}/.DS_Store",)
"""A file that the Finder writes into each folder that it shows."""


def check_file(out: Path, overwrite: bool, is_exported: Callable[[Path], bool]) -> None:
    """Refuse a file that an export must not replace.

    Args:
        out: The file to write.
        overwrite: If True, an earlier export may be replaced.
        is_exported: Returns True for an earlier export.

    Raises:
        RunError: `out` was not exported, or must not be overwritten.
    """
    files.check_links(out)
    if out.is_dir():
        raise RunError(f"{out} is a folder, and this target is one file: --out names a file")
    _check_overwrite(out, overwrite)
    if out.exists() and not (out.is_file() and is_exported(out)):
        raise _not_ours(out)


def check_folder(out: Path, overwrite: bool) -> None:
    """Refuse a folder that an export must not replace.

    Raises:
        RunError: `out` was not exported, must not be overwritten, or is the current folder or one
            of its parents.
    """
    files.check_links(out)
    if files.holds_current_folder(out):
        raise RunError(
            f"{out} is the folder that you are in, or a parent of it: --out names a folder of the "
            "export's own"
        )
    if out.exists() and not out.is_dir():
        raise RunError(f"{out} is a file, and this target is a folder: --out names another place")
    _check_overwrite(out, overwrite)
    if out.is_dir() and any(out.iterdir()) and not (out / _LIST).is_file():
        raise _not_ours(out)


def _check_overwrite(out: Path, overwrite: bool) -> None:
    if out.exists() and not overwrite:
        raise RunError(f"{out} exists: --overwrite replaces it, --out names another place")


def _not_ours(out: Path) -> RunError:
    return RunError(
        f"{out} was not written by export, so --overwrite leaves it alone: --out names another "
        "place"
    )


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield a new folder that replaces `out` when the block ends.

    The user's files move into it. If the block raises, `out` is unchanged.

    Raises:
        RunError: The new export needs the name of a user's file, or the folder cannot be written.
    """
    if out.is_symlink() or ".." in out.parts:
        out = out.resolve()
    new = files.aside(out)
    try:
        yield new
        names = sorted(path.relative_to(new).as_posix() for path in _entries(new))
        digests = {name: _digest(new / name) for name in names}
        files.write_text(new / _LIST, json.dumps(digests, indent=1) + "\n")
        own = _files_of_the_export(out)
        _check_distinct(out, own, new)
    except BaseException:
        if new.exists():
            files.remove_directory(new)
        raise
    files.replace_directory(out, new, keep=lambda name: name not in own)


def _entries(folder: Path) -> Iterator[Path]:
    """Yield the paths in an exported folder and in its `OWN` folder."""
    for path in folder.iterdir():
        if path.name != OWN or not path.is_dir():
            yield path
    if (folder / OWN).is_dir():
        yield from (folder / OWN).iterdir()


def _files_of_the_export(folder: Path) -> set[str]:
    """Return the names of files that export wrote and nobody changed since."""
    file = folder / _LIST
    if not file.is_file():
        return set()
    listed = read_record(file, dict[str, str])
    own = {path.relative_to(folder).as_posix(): path for path in _entries(folder)}
    unchanged = {name for name, path in own.items() if _digest(path) == listed.get(name, "")}
    return unchanged | {OWN, _LIST, *_OF_THE_SYSTEM}


def _check_distinct(out: Path, own: set[str], new: Path) -> None:
    """Refuse user's files whose names the new folder needs."""
    written = {path.relative_to(new).as_posix() for path in _entries(new)}
    there = _entries(out) if out.is_dir() else ()
    for name in sorted({path.relative_to(out).as_posix() for path in there} - own):
        if name in written or name.startswith(f"{OWN}/"):
            raise RunError(
                f"{out / name} was changed since the export, or is not of it: move it elsewhere, "
                "or --out names another place"
            )


def _digest(path: Path) -> str | None:
    """Return the digest of an ordinary file; None for anything else."""
    if path.is_symlink() or not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
