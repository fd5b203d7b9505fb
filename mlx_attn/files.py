"""Writing files so that a crash, a full disk or a second process never leaves half of one behind.

Everything is written to a temporary file beside the target, flushed to the disk, and renamed over
the target: a reader sees the old file or the new one, never a mixture.
"""

import contextlib
import errno
import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from mlx_attn.errors import RunError

_WAYS_OUT = {
    errno.ENOSPC: "free some space on that disk or choose another folder",
    errno.EDQUOT: "free some of your disk quota or choose another folder",
    errno.EROFS: "choose a folder on a disk that can be written to",
    errno.EACCES: "choose a folder that you may write to",
    errno.EPERM: "choose a folder that you may write to",
    errno.ENOTDIR: "one of its parent folders is a file: choose another folder",
    errno.EISDIR: "there is a folder of that name: choose another name",
}


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Gives a temporary path to write to; when the block ends, it becomes `path` in one step.

    Parent folders are made as needed. When the block raises, `path` is left as it was.

    Raises:
        RunError: The file cannot be written; names the path, the reason and the way out.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
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


@contextlib.contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Makes `folder` as needed and locks it: another process that asks for it waits its turn.

    A folder that is empty in the end is removed.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise unwritable(folder, error) from error
    try:
        with contextlib.suppress(OSError):  # some disks of a network have no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)  # which frees it
        with contextlib.suppress(OSError):
            folder.rmdir()


def write_bytes(path: Path, data: bytes) -> None:
    """Writes `data` to `path` in one step."""
    with atomic_write(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    """Writes `text` to `path` as UTF-8 in one step, line endings as they are."""
    write_bytes(path, text.encode())


def unwritable(path: Path, error: OSError) -> RunError:
    """The one-line error for a `path` that the system refused to write."""
    way_out = _WAYS_OUT.get(error.errno or 0, "check the disk and the folder")
    return RunError(f"{path}: cannot be written ({error.strerror or error}); {way_out}")


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
