"""Writing files so that a crash, a full disk or a second process never leaves half of one behind.

Everything is written to a temporary file next to the target, flushed to the disk, and renamed over
the target: a reader sees the old file or the new one, never a mixture. One process at a time writes
in a directory that it locks. An HTML page replaces only a page of this program.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from mlx_attn.errors import ConfigError, RunError

_TEMPORARY = ".tmp"
LEFT_BEHIND = f".*.{'[0-9a-f]' * 8}{_TEMPORARY}"  # by a killed process, and no file of the user


def user_path(text: str | Path) -> Path:
    """Return the path that a user wrote, with `~` expanded; refuse what no file can be called.

    All paths from outside come through here.
    """
    if not isinstance(text, str | os.PathLike) or not str(text) or "\0" in str(text):
        raise ConfigError(f"'{text}' names no file: give a path, without NUL characters")
    try:
        str(text).encode()
        path = Path(text).expanduser()
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            path.stat()  # where `exists` returns False, from Python 3.14 on
    except UnicodeEncodeError as error:  # MLX neither reads nor writes such a file
        raise ConfigError(
            f"'{text}' holds bytes that are not UTF-8: rename it, or set LANG to a UTF-8 locale"
        ) from error
    except RuntimeError as error:
        raise ConfigError(f"'{text}': there is no such user; write './~...' for a file") from error
    except PermissionError as error:  # in another user's folder
        raise RunError(f"'{text}': {error.strerror}") from error
    except OSError as error:  # the name is too long, or of links in a ring
        raise ConfigError(f"'{text}': {error.strerror}") from error
    return path


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; when the block ends, it becomes `path` in one step.

    Parent folders are made as needed. When the block raises, `path` is left as it was.

    Raises:
        RunError: The file cannot be written; names the path, the reason and the way out.
    """
    if path.exists() and not path.is_file():
        raise RunError(f"{path}: is there and is no file: choose another name")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_TEMPORARY}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` to `path` in one step."""
    with atomic_write(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` as UTF-8 in one step, line endings as they are."""
    write_bytes(path, text.encode())


def digest(content: bytes) -> str:
    """Return the BLAKE2b digest of some bytes, in 32 hexadecimal digits."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def make_directory(folder: Path, mode: int = 0o777) -> None:
    """Make a directory and its parents as needed."""
    try:
        folder.mkdir(mode, parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from error


def remove(path: Path) -> None:
    """Remove a file, a link, or a directory with all that is in it, if it is there."""
    try:
        is_folder = path.is_dir() and not path.is_symlink()
        shutil.rmtree(path) if is_folder else path.unlink(missing_ok=True)
    except OSError as error:
        raise unwritable(path, error) from error


@contextlib.contextmanager
def lock(folder: Path, wait: bool = False) -> Iterator[None]:
    """Make `folder` if needed and lock it until the block, or this process, ends.

    The lock is flock(2) on the directory itself: nothing is left behind, and a process that is
    killed holds nothing. Files that a killed process left half written are removed, and so
    is a folder that is empty in the end.

    Raises:
        RunError: The folder cannot be made, or another process holds it and `wait` is False.
    """
    make_directory(folder)
    descriptor = os.open(folder, os.O_RDONLY)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            way_out = "wait until that ends or stop it, or name another directory"
            raise RunError(f"{folder} is in use by another process: {way_out}") from error
        except OSError as error:  # as of a shared disk that knows no locks
            raise unwritable(folder, error) from error
        # Folders without a lock of their own: a run below has one, and may be writing.
        for place in ("", "checkpoint/", "track/", "trainings/", "copies/*/"):
            for left_behind in folder.glob(place + LEFT_BEHIND):
                left_behind.unlink(missing_ok=True)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # it is not empty
                folder.rmdir()


def check_page(path: Path, overwrite: bool) -> None:
    """Refuse to write a page over anything but a page of this program, unless told to."""
    mark = b'<meta name="generator" content="mlx_attn">'  # in the head of every page
    if path.is_file() and not overwrite and mark not in path.read_bytes()[: 1 << 16]:
        raise RunError(
            f"{path} is not a page of this program: rename it, choose another name, or let "
            "--overwrite replace it"
        )


def unwritable(path: Path, error: OSError) -> RunError:
    """Return the one-line error for a `path` that the system refused to write."""
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    way_out = "free some space there or choose" if is_full else "choose"
    blocked = isinstance(error, FileExistsError)  # by a file, or by a link to a place that is gone
    reason = f"{error.filename} is no folder" if blocked else error.strerror or error
    return RunError(f"{path}: cannot be written ({reason}); {way_out} another folder")
