"""Brings a file of the web here: resumed where it stopped, checked by size and digest, and kept.

Without a network the error names the address and the place to put the file by hand.
"""

import contextlib
import functools
import hashlib
import http.client
import io
import shutil
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mlx_attn.errors import ConfigError, RunError
from mlx_attn.files import replacing, unwritable

Progress = Callable[[int, int], None]  # bytes done, bytes in all

STALL = 30.0  # seconds without a byte before a transfer is given up
_BLOCK = 1 << 16


@dataclass(frozen=True)
class Download:
    """A file on the web: what it must be once here, and how it travels.

    Attributes:
        url: An http or https address.
        file: Its name in the data directory.
        size: Its size there, in bytes.
        digest: `algorithm:hexadecimal` of the file.
        licence: The terms it is published under.
        member: For a zip archive, the member that is the file.
        archive_size: For a zip archive, its own size in bytes.
        instead: What a user without a network may choose instead.
    """

    url: str
    file: str
    size: int
    digest: str
    licence: str
    member: str | None = None
    archive_size: int = 0
    instead: str = "use --data tales, which needs no network"

    @property
    def transfer_size(self) -> int:
        """The bytes that travel."""
        return self.archive_size if self.member else self.size


def fetch(
    download: Download, directory: Path, progress: Progress | None = None, stall: float = STALL
) -> Path:
    """The path of `download` in `directory`, fetched first unless it is there.

    Args:
        download: What to fetch: a row of `CORPORA`, or `GPT2_MERGES`.
        directory: The data directory.
        progress: Called with the bytes done and the bytes in all.
        stall: Seconds without a byte before the transfer is given up; what came is kept.

    Raises:
        ConfigError: The address is neither http nor https.
        RunError: The network, the server, the disk or the digest; says what to do.
    """
    path = directory / download.file
    if path.is_file() and path.stat().st_size == download.size:
        return path
    if not download.url.startswith(("http://", "https://")):
        raise ConfigError(f"{download.url}: only http and https addresses are fetched")
    part = directory / f"{download.file}.part"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _Transfer(download, path, part, stall).run(progress or (lambda done, total: None))
    except OSError as error:
        raise unwritable(part, error) from error
    return path


@dataclass(frozen=True)
class _Transfer:
    """One attempt to bring `download` to `path` by way of `part`."""

    download: Download
    path: Path
    part: Path
    stall: float

    def run(self, progress: Progress) -> None:
        """Receives what is missing, then unpacks and checks it."""
        total = self.download.transfer_size
        done = self.part.stat().st_size if self.part.exists() else 0
        if done != total:
            done = self._receive(done if done < total else 0, progress)
        if done < total:
            raise self._failed(f"stopped after {done:,} of {total:,} bytes", "run this again")
        self._unpack()

    def _receive(self, done: int, progress: Progress) -> int:
        """Appends to `part` what comes; returns its size then."""
        total = self.download.transfer_size
        with self._request(done) as response, self.part.open("ab") as file:
            file.truncate(done if response.status == http.HTTPStatus.PARTIAL_CONTENT else 0)
            file.seek(0, io.SEEK_END)
            while file.tell() <= total and (block := self._block(response)):
                file.write(block)
                progress(file.tell(), total)
            return file.tell()

    def _request(self, done: int) -> http.client.HTTPResponse:
        headers = {"User-Agent": "mlx_attn"} | ({"Range": f"bytes={done}-"} if done else {})
        with self._explaining():
            try:
                request = urllib.request.Request(self.download.url, headers=headers)
                return _opener().open(request, timeout=self.stall)
            except urllib.error.HTTPError as error:
                error.close()
                if done and error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                    return self._request(0)
                raise

    def _block(self, response: http.client.HTTPResponse) -> bytes:
        with self._explaining():
            return response.read1(_BLOCK)  # what has come; `read` would lose it in a stall

    @contextlib.contextmanager
    def _explaining(self) -> Iterator[None]:
        """Turns what the network raises into one line; disk errors are not raised in here."""
        try:
            yield
        except urllib.error.HTTPError as error:
            raise self._failed(f"the server answered {error.code} {error.reason}") from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, TimeoutError):
                stalled = f"nothing came for {self.stall:g} seconds"
                raise self._failed(stalled, "run this again to resume") from error
            raise self._failed(f"cannot be reached ({reason})") from error

    def _unpack(self) -> None:
        """Makes `part` the file that was asked for; deletes it when it is another."""
        with replacing(self.path) as temporary:
            if self.download.member:
                self._extract(self.download.member, temporary)
            else:
                self.part.replace(temporary)
            self._verify(temporary)
        self.part.unlink(missing_ok=True)

    def _extract(self, member: str, target: Path) -> None:
        try:
            with (
                zipfile.ZipFile(self.part) as archive,
                archive.open(member) as source,
                target.open("wb") as file,
            ):
                shutil.copyfileobj(source, file)
        except (zipfile.BadZipFile, zlib.error, KeyError, EOFError) as error:
            self.part.unlink()
            raise self._failed(f"the archive was damaged ({error}) and is deleted") from error

    def _verify(self, file: Path) -> None:
        algorithm, _, expected = self.download.digest.partition(":")
        constructor = functools.partial(hashlib.new, algorithm, usedforsecurity=False)
        with file.open("rb") as content:
            found = hashlib.file_digest(content, constructor).hexdigest()
        if file.stat().st_size != self.download.size or found != expected:
            self.part.unlink(missing_ok=True)
            raise self._failed(
                f"what came has {file.stat().st_size:,} bytes and {algorithm} {found}, not "
                f"{self.download.size:,} and {expected}; it is deleted"
            )

    def _failed(self, what: str, remedy: str = "try again") -> RunError:
        form = f"{self.download.member} of that archive" if self.download.member else "the file"
        return RunError(
            f"{self.download.url}: {what}; {remedy}, or put {form} at {self.path} by hand, or "
            f"{self.download.instead}"
        )


@functools.cache
def _opener() -> urllib.request.OpenerDirector:
    """Opens http and https only, wherever a server redirects to."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    return opener
