"""Writing files so that a crash, a full disk or a second process never leaves half of one behind.

Everything is written to a temporary file next to the target, flushed to the disk, and renamed over
the target: a reader sees the old file or the new one, never a mixture. A directory is made, locked
and replaced by one function each. An HTML page replaces only a page of this program.
"""

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from mlx_attn.errors import ConfigError, RunError

_WAYS_OUT = {
    errno.ENOSPC: "free some space on that disk or choose another folder",
    errno.EDQUOT: "free some of your disk quota or choose another folder",
    errno.EROFS: "choose a folder on a disk that can be written to",
    errno.EACCES: "choose a folder that you may write to",
    errno.EPERM: "choose a folder that you may write to",
    errno.ENOTDIR: "one of its parent folders is a file: choose another folder",
    errno.EISDIR: "there is a folder of that name: choose another name",
}


_TEMPORARY = ".tmp"
_LONGEST_NAME = 255
_LONGEST_PATH = os.pathconf("/", "PC_PATH_MAX") - 1
"""Bytes, on every disk that matters."""


def user_path(text: str | Path) -> Path:
    """Return the path that a user wrote, with `~` expanded; refuse what no file can be called.

    All paths from outside come through here.
    """
    text = str(text)
    start = f"'{text[:40]}...'" if len(text) > 40 else f"'{text}'"
    if not text or "\0" in text:
        raise ConfigError(f"{start} names no file: give a path without NUL characters")
    check_name(Path(text))
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{start}: there is no such user; write './~...' for a file") from error
    names = map(os.fsencode, path.parts)
    if max(map(len, names), default=0) > _LONGEST_NAME or len(os.fsencode(path)) > _LONGEST_PATH:
        raise ConfigError(
            f"{start} is too long: a name has at most {_LONGEST_NAME} bytes, and a path "
            f"{_LONGEST_PATH}"
        )
    check_links(path)
    return path


def check_name(path: Path) -> None:
    """Refuse a name that is not UTF-8, under which MLX neither reads nor writes a file."""
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"'{path}' holds bytes that are not UTF-8: rename it, or choose another name"
        ) from error


def check_links(path: Path) -> None:
    """Refuse a symbolic link that leads to itself or to nothing."""
    for link in (path, *path.parents):
        try:
            link.stat()
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ELOOP) or not link.is_symlink():
                continue
            fault = f"to {link.readlink()}, where there is nothing"
            if error.errno == errno.ELOOP:
                fault = "that leads to itself"
            raise ConfigError(
                f"{link} is a symbolic link {fault}: remove the link, or name another path"
            ) from error


def holds_current_folder(path: Path) -> bool:
    """Return whether a path is the folder that this process is in, or one of its parents."""
    try:
        return Path.cwd().resolve().is_relative_to(path.resolve())
    except FileNotFoundError:  # that folder was removed
        return False


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; when the block ends, it becomes `path` in one step.

    Parent folders are made as needed. When the block raises, `path` is left as it was.

    Raises:
        RunError: The file cannot be written; names the path, the reason and the way out.
    """
    _check_ordinary(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_TEMPORARY}")
    make_directory(path.parent, path)
    try:
        yield temporary
        _flush(temporary)
        temporary.replace(path)
        # A rename is kept after a power cut once its folder is flushed; not every disk offers it.
        with contextlib.suppress(OSError):
            _flush(path.parent)
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _check_ordinary(path: Path) -> None:
    """Refuse to put a file in the place of a folder, a device or a pipe."""
    if path.is_dir():
        raise unwritable(path, IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)))
    if path.exists() and not path.is_file():
        raise RunError(f"{path}: no ordinary file, so it is not replaced: choose another name")


def make_directory(folder: Path, file: Path | None = None, mode: int = 0o777) -> None:
    """Make a directory and its parents as needed; an error names the `file` that it was for."""
    try:
        folder.mkdir(mode, parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(file or folder, error) from error


class Locked(RunError):
    """Another process holds a directory."""


@contextlib.contextmanager
def lock(folder: Path, wait: bool = True) -> Iterator[None]:
    """Make `folder` if needed and lock it until the block, or this process, ends.

    The lock is flock(2) on the directory itself: nothing is left behind, a process that is killed
    holds nothing, and a directory that is renamed stays held. What a killed process left half
    written in it is removed; a folder that is empty in the end is removed too. Where a disk of a
    network has no locks, nothing is held.

    Args:
        folder: The directory.
        wait: Whether another process that holds it is waited for.

    Raises:
        RunError: The folder cannot be made.
        Locked: Another process holds it, and `wait` is false.
    """
    while True:
        descriptor = _opened(folder)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            os.close(descriptor)
            raise Locked(
                f"{folder} is in use by another process: wait until that ends or stop it, or name "
                "another directory"
            ) from error
        except OSError:  # a disk without locks
            break
        locked = os.fstat(descriptor)
        if identity(folder) == (locked.st_dev, locked.st_ino):
            break
        os.close(descriptor)  # it was replaced meanwhile
    with _freeing(descriptor, folder):
        _remove_half_written(folder)
        yield


@contextlib.contextmanager
def shared(folder: Path) -> Iterator[None]:
    """Make `folder` if needed and share it with other processes until the block ends.

    The first of them removes a killed process's half-written files; see `lock`.
    """
    descriptor = _opened(folder)
    with _freeing(descriptor, folder):
        with contextlib.suppress(OSError):  # others share it, or the disk lacks locks
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove_half_written(folder)
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield


def _opened(folder: Path) -> int:
    """Return a descriptor of the directory, which is made as needed."""
    make_directory(folder)
    try:
        return os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise unwritable(folder, error) from error


@contextlib.contextmanager
def _freeing(descriptor: int, folder: Path) -> Iterator[None]:
    """Free a directory when the block ends; remove one that is empty."""
    try:
        yield
    finally:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            folder.rmdir()


def _remove_half_written(folder: Path) -> None:
    for left_behind in folder.rglob(f".*{_TEMPORARY}"):
        with contextlib.suppress(OSError):
            left_behind.unlink()


def identity(path: Path) -> tuple[int, int] | None:
    """Return the identity of a file or directory, regardless of its name; None if it is gone."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def aside(path: Path) -> Path:
    """Return a new name beside a directory, for what replaces it or was replaced."""
    return path.with_name(f"{path.name}-{secrets.token_hex(4)}.replaced")


def replace_directory(
    path: Path, new: Path, keep: Callable[[str], bool] = lambda name: False
) -> None:
    """Put the finished directory `new` at `path`, in two renames: the old one steps aside first.

    Between the two `path` has no name, and both directories are whole. Afterwards what lay in the
    old one is removed; files whose names `keep` accepts move to the new one.

    Raises:
        RunError: It cannot be done, and `path` is as it was; or a file cannot be moved, and the old
            directory, which the message names, still has it.
    """
    old = aside(path)
    try:
        if path.exists():
            path.rename(old)
        new.rename(path)
    except OSError as error:
        if old.exists():
            old.rename(path)
        remove_directory(new)
        raise unwritable(path, error) from error
    if not old.exists():
        return
    try:
        for file in old.iterdir():
            if keep(file.name):
                file.rename(path / file.name)
    except OSError as error:
        raise unwritable(old, error) from error
    remove_directory(old)


def remove_directory(folder: Path) -> None:
    """Remove a directory; warn if the system refuses, with the reason."""
    try:
        shutil.rmtree(folder)
    except OSError as error:
        warnings.warn(f"{folder}: cannot be removed ({error.strerror or error})", stacklevel=3)


def remove(path: Path) -> None:
    """Remove a file, a link, or a directory with all that is in it."""
    try:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    except OSError as error:
        raise unwritable(path, error) from error


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` to `path` in one step."""
    with atomic_write(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` as UTF-8 in one step, line endings as they are."""
    write_bytes(path, text.encode())


_PAGE = b'<meta name="generator" content="mlx_attn">'
"""In the head of every page that this program writes."""


def check_page(path: Path, overwrite: bool = False) -> None:
    """Refuse to write a page over anything but a page of this program, unless told to."""
    _check_ordinary(path)
    if overwrite or not path.exists():
        return
    with path.open("rb") as file:
        if _PAGE not in file.read(1 << 16):
            raise RunError(
                f"{path} is not a page of this program: rename it, choose another name, or let "
                "--overwrite replace it"
            )


def unwritable(path: Path, error: OSError) -> RunError:
    """Return the one-line error for a `path` that the system refused to write."""
    way_out = _WAYS_OUT.get(error.errno or 0, "check the disk and the folder")
    return RunError(f"{path}: cannot be written ({error.strerror or error}); {way_out}")


def _flush(path: Path) -> None:
    """Flush a file; on macOS out of the drive's own cache too, where `fsync` leaves it."""
    descriptor = os.open(path, os.O_RDONLY)
    full = getattr(fcntl, "F_FULLFSYNC", None)  # only macOS has it, and not on every file system
    try:
        if full is not None:
            with contextlib.suppress(OSError):
                fcntl.fcntl(descriptor, full)
                return
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
