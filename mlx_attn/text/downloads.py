"""Downloads: resumed where they stopped, checked by size and digest, and kept.

Without a network, the error names the address and the place to put the file by hand.
"""

import contextlib
import functools
import hashlib
import http.client
import io
import os
import shutil
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mlx_attn.errors import ConfigError, RunError
from mlx_attn.files import atomic_write, make_directory, unwritable, user_path
from mlx_attn.machine.facts import user_directory
from mlx_attn.records import package_table

Progress = Callable[[int, int], None]  # bytes done, bytes in all

_STALL = 30.0  # seconds without a byte before a transfer is given up
_BLOCK = 1 << 16


@dataclass(frozen=True)
class Download:
    """A file on the web."""

    url: str
    file: str  # its name in the data directory
    size: int  # its size there, in bytes
    digest: str  # `algorithm:hexadecimal` of the file
    licence: str
    member: str | None = None  # for a zip archive, the member that is the file
    archive_size: int = 0  # for a zip archive, its own size in bytes
    document_start: str = ""  # the text before each of its documents, if there is one
    document_end: str = ""  # the text that ends each of its documents, if any
    instead: str = "use --data tales, which needs no network"

    @property
    def transfer_size(self) -> int:
        """Bytes to receive, of the archive if it is one."""
        return self.archive_size if self.member else self.size


def fetch(
    download: Download, directory: Path, progress: Progress | None = None, stall: float = _STALL
) -> Path:
    """Return the path of `download` in `directory`, fetched first unless it is there.

    Args:
        download: A row of `CORPORA`, or `GPT2_MERGES`.
        directory: The data directory.
        progress: Called with the bytes done and the bytes in all.
        stall: Seconds without a byte before the transfer is given up; the part received is kept.

    Raises:
        ConfigError: The address is neither http nor https.
        RunError: The network, the server, the disk or the digest failed; the message has advice.
    """
    path, part = directory / download.file, directory / f"{download.file}.part"
    total = download.transfer_size
    if path.is_file() and path.stat().st_size == download.size:
        return path
    if not download.url.startswith(("http://", "https://")):
        raise ConfigError(f"{download.url}: only http and https addresses are fetched")
    try:
        make_directory(directory, part)
        done = part.stat().st_size if part.exists() else 0
        if done != total:
            done = _receive(download, path, part, stall, progress)
        if done < total:
            stopped = f"stopped after {done:,} of {total:,} bytes"
            raise _failure(download, path, stopped, "run this again")
        with atomic_write(path) as temporary:
            _unpack(download, path, part, temporary)
        part.unlink(missing_ok=True)
    except OSError as error:
        raise unwritable(part, error) from error
    return path


def _receive(
    download: Download, path: Path, part: Path, stall: float, progress: Progress | None
) -> int:
    """Append the missing bytes to `part`, and return its size."""
    total = download.transfer_size
    done = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "mlx_attn"}
    if 0 < done < total:
        headers["Range"] = f"bytes={done}-"
    request = urllib.request.Request(download.url, headers=headers)
    with _explaining(download, path, stall):
        response = urllib.request.urlopen(request, timeout=stall)
    with response, part.open("ab") as file:
        file.truncate(done if response.status == http.HTTPStatus.PARTIAL_CONTENT else 0)
        file.seek(0, io.SEEK_END)
        while file.tell() <= total:
            with _explaining(download, path, stall):
                block = response.read1(_BLOCK)  # `read` would lose what came before a stall
            if not block:
                break
            file.write(block)
            if progress:
                progress(file.tell(), total)
        return file.tell()


@contextlib.contextmanager
def _explaining(download: Download, path: Path, stall: float) -> Iterator[None]:
    """Turn errors of the network into one line; errors of the disk do not occur in here."""
    try:
        yield
    except urllib.error.HTTPError as error:
        error.close()
        answer = f"the server answered {error.code} {error.reason}"
        raise _failure(download, path, answer) from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, TimeoutError):
            stalled = f"no data for {stall:g} seconds"
            raise _failure(download, path, stalled, "run this again to resume") from error
        raise _failure(download, path, f"cannot be reached ({reason})") from error


def _unpack(download: Download, path: Path, part: Path, target: Path) -> None:
    """Make `target` from `part`; delete `part` if it is damaged or another file."""
    try:
        if download.member:
            with (
                zipfile.ZipFile(part) as archive,
                archive.open(download.member) as source,
                target.open("wb") as file,
            ):
                shutil.copyfileobj(source, file)
        else:
            part.replace(target)
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError) as error:
        part.unlink()
        damaged = f"the archive was damaged ({error}) and is deleted"
        raise _failure(download, path, damaged) from error
    algorithm, _, expected = download.digest.partition(":")
    with target.open("rb") as content:
        new = functools.partial(hashlib.new, algorithm, usedforsecurity=False)
        found = hashlib.file_digest(content, new).hexdigest()
    if target.stat().st_size != download.size or found != expected:
        part.unlink(missing_ok=True)
        other = (
            f"the download has {target.stat().st_size:,} bytes and {algorithm} {found}, not "
            f"{download.size:,} and {expected}; it is deleted"
        )
        raise _failure(download, path, other)


def _failure(download: Download, path: Path, what: str, remedy: str = "try again") -> RunError:
    form = f"{download.member} of that archive" if download.member else "the file"
    return RunError(
        f"{download.url}: {what}; {remedy}, or put {form} at {path} by hand, or {download.instead}"
    )


_TABLE = package_table("mlx_attn.text", "corpora")

CORPORA = {name: Download(file=f"{name}.txt", **row) for name, row in _TABLE.items()}

GPT2_MERGES = Download(
    url="https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/vocab.bpe",
    file="gpt2.vocab.bpe",
    size=456_318,
    digest="sha256:1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
    licence="MIT, modified (OpenAI)",
    instead="use --tokenizer bpe, which is trained here",
)


def data_directory() -> Path:
    """Return where corpora are: `MLX_ATTN_DATA_DIR`, `data/` in a clone, or the user's cache."""
    if chosen := os.environ.get("MLX_ATTN_DATA_DIR"):
        return user_path(chosen)
    readme = Path("data", "README.md")
    if readme.is_file() and "mlx_attn" in readme.read_text(encoding="utf-8", errors="replace"):
        return readme.parent
    return user_directory("cache")
