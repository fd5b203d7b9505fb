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
import sys
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx_attn.errors import ConfigError, RunError
from mlx_attn.files import atomic_write, unwritable

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
    instead: str = "use --data tales, which needs no network"

    @property
    def transfer_size(self) -> int:
        """Bytes to receive: those of the archive, if it is one."""
        return self.archive_size if self.member else self.size


def fetch(
    download: Download, directory: Path, progress: Progress | None = None, stall: float = _STALL
) -> Path:
    """The path of `download` in `directory`, fetched first unless it is there.

    Args:
        download: A row of `CORPORA`, or `GPT2_MERGES`.
        directory: The data directory.
        progress: Called with the bytes done and the bytes in all.
        stall: Seconds without a byte before the transfer is given up; what came is kept.

    Raises:
        ConfigError: The address is neither http nor https.
        RunError: The network, the server, the disk or the digest; says what to do.
    """
    path, part = directory / download.file, directory / f"{download.file}.part"
    total = download.transfer_size
    if path.is_file() and path.stat().st_size == download.size:
        return path
    if not download.url.startswith(("http://", "https://")):
        raise ConfigError(f"{download.url}: only http and https addresses are fetched")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        done = part.stat().st_size if part.exists() else 0
        if done != total:
            done = _receive(download, path, part, stall, progress or (lambda done, total: None))
        if done < total:
            stopped = f"stopped after {done:,} of {total:,} bytes"
            raise _failure(download, path, stopped, "run this again")
        with atomic_write(path) as temporary:
            _unpack(download, path, part, temporary)
        part.unlink(missing_ok=True)
    except OSError as error:
        raise unwritable(part, error) from error
    return path


def _receive(download: Download, path: Path, part: Path, stall: float, progress: Progress) -> int:
    """Appends to `part` what is missing; returns its size then."""
    total = download.transfer_size
    done = part.stat().st_size if part.exists() else 0
    with _explaining(download, path, stall):
        response = _request(download.url, done if done < total else 0, stall)
    with response, part.open("ab") as file:
        file.truncate(done if response.status == http.HTTPStatus.PARTIAL_CONTENT else 0)
        file.seek(0, io.SEEK_END)
        while file.tell() <= total:
            with _explaining(download, path, stall):
                block = response.read1(_BLOCK)  # `read` would lose what came before a stall
            if not block:
                break
            file.write(block)
            progress(file.tell(), total)
        return file.tell()


def _request(url: str, start: int, stall: float) -> http.client.HTTPResponse:
    """The answer to a request for a file from byte `start` on."""
    headers = {"User-Agent": "mlx_attn"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        opener = urllib.request.build_opener(_StaysOnHTTP)
        return opener.open(urllib.request.Request(url, headers=headers), timeout=stall)
    except urllib.error.HTTPError as error:
        error.close()
        if start and error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return _request(url, 0, stall)
        raise


class _StaysOnHTTP(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if not newurl.startswith(("http://", "https://")):
            raise urllib.error.URLError(f"it is redirected to {newurl}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


@contextlib.contextmanager
def _explaining(download: Download, path: Path, stall: float) -> Iterator[None]:
    """Turns errors of the network into one line; errors of the disk do not occur in here."""
    try:
        yield
    except urllib.error.HTTPError as error:
        answer = f"the server answered {error.code} {error.reason}"
        raise _failure(download, path, answer) from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, TimeoutError):
            stalled = f"nothing came for {stall:g} seconds"
            raise _failure(download, path, stalled, "run this again to resume") from error
        raise _failure(download, path, f"cannot be reached ({reason})") from error


def _unpack(download: Download, path: Path, part: Path, target: Path) -> None:
    """Makes `target` from `part`; deletes `part` when it is damaged or another file."""
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
            f"what came has {target.stat().st_size:,} bytes and {algorithm} {found}, not "
            f"{download.size:,} and {expected}; it is deleted"
        )
        raise _failure(download, path, other)


def _failure(download: Download, path: Path, what: str, remedy: str = "try again") -> RunError:
    form = f"{download.member} of that archive" if download.member else "the file"
    return RunError(
        f"{download.url}: {what}; {remedy}, or put {form} at {path} by hand, or {download.instead}"
    )


CORPORA = {
    "tiny-shakespeare": Download(
        url="https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
        file="tiny-shakespeare.txt",
        size=1_115_394,
        digest="sha256:86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
        licence="public domain",
    ),
    "the-verdict": Download(
        url="https://raw.githubusercontent.com/rasbt/LLMs-from-scratch/main/ch02/01_main-chapter-code/the-verdict.txt",
        file="the-verdict.txt",
        size=20_479,
        digest="sha256:b41e41a68f0398a3154ae69e2e4c0e2694e17fe0d66730536837f1b01935b31f",
        licence="public domain (Edith Wharton, 1908)",
    ),
    # The validation file of the second version: as much as a tiny model needs.
    "tinystories": Download(
        url="https://huggingface.co/datasets/roneneldan/TinyStories/resolve/f54c09fd23315a6f9c86f9dc80f725de7d8f9c64/TinyStoriesV2-GPT4-valid.txt",
        file="tinystories.txt",
        size=22_502_601,
        digest="sha256:6874bae9a4c1a4e7edcf0e53b86c17817e9cf881fc75ff2368da457b80c0585d",
        licence="CDLA-Sharing-1.0",
    ),
    "enwik8": Download(
        url="https://mattmahoney.net/dc/enwik8.zip",
        file="enwik8.txt",
        size=100_000_000,
        digest="sha256:2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8",
        licence="Wikipedia, GFDL",
        member="enwik8",
        archive_size=36_445_475,
    ),
    # Its author published the MD5 sum.
    "text8": Download(
        url="https://mattmahoney.net/dc/text8.zip",
        file="text8.txt",
        size=100_000_000,
        digest="md5:3bea1919949baf155f99411df5fada7e",
        licence="Wikipedia, GFDL",
        member="text8",
        archive_size=31_344_016,
    ),
}

GPT2_MERGES = Download(
    url="https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/vocab.bpe",
    file="gpt2.vocab.bpe",
    size=456_318,
    digest="sha256:1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
    licence="MIT, modified (OpenAI)",
    instead="use --tokenizer bpe, which is trained here",
)


def data_directory() -> Path:
    """Where corpora are: `MLX_ATTN_DATA_DIR`, else `data/` in a clone, else the user's cache."""
    if chosen := os.environ.get("MLX_ATTN_DATA_DIR"):
        return Path(chosen).expanduser()
    readme = Path("data", "README.md")
    if readme.is_file() and "mlx_attn" in readme.read_text(encoding="utf-8", errors="replace"):
        return readme.parent
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "mlx_attn"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mlx_attn"
