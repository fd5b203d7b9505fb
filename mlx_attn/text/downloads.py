"""Brings a file of the web here: resumed where it stopped, checked by size and digest, and kept.

Without a network the error names the address and the place to put the file by hand.
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

from mlx_attn.errors import ConfigError, RunError
from mlx_attn.files import atomic_write, unwritable

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
        with atomic_write(self.path) as temporary:
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
