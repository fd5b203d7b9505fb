"""Downloads: checked by size and digest, and kept.

Without a network, the error names the address and the place to put the file by hand.
"""

import hashlib
import http.client
import io
import os
import urllib.error
import urllib.request
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from mlx_attn.errors import RunError
from mlx_attn.files import user_path, write_bytes
from mlx_attn.machine.folders import user_directory
from mlx_attn.records import package_table
from mlx_attn.text.progress import log_progress

_STALL = 30.0  # seconds without a byte before a transfer is given up
_BLOCK = 1 << 16  # bytes


@dataclass(frozen=True)
class Download:
    """A file on the web."""

    url: str
    file: str  # its name in the data directory
    size: int  # its size there, in bytes
    digest: str  # `algorithm:hexadecimal` of the file
    licence: str
    member: str | None = None  # for a zip archive, the member that is the file
    document_start: str = ""  # the text before each of its documents, if there is one
    document_end: str = ""  # the text that ends each of its documents, if any
    instead: str = "use --data tales, which needs no network"


def fetch(download: Download, directory: Path) -> Path:
    """Return the path of `download` in the data directory, fetched first unless it is there.

    Raises:
        RunError: The network, the server, the disk or the digest failed; the message has advice.
    """
    path = directory / download.file
    if path.is_file() and path.stat().st_size == download.size:
        return path
    try:
        content = _received(download)
        if download.member:
            content = zipfile.ZipFile(io.BytesIO(content)).read(download.member)
        algorithm, _, digest = download.digest.partition(":")
        received_digest = hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()
        if received_digest != digest:
            raise ValueError(
                f"{len(content):,} bytes with {algorithm} {received_digest} came, not "
                f"{download.size:,} with {digest}"
            )
    except urllib.error.HTTPError as error:
        error.close()
        answer = f"the server answered {error.code} {error.reason}"
        raise _failure(download, path, answer) from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        if "CERTIFICATE_VERIFY_FAILED" in str(reason):
            reason = f"{reason}; on a Mac, run python.org's 'Install Certificates.command'"
        raise _failure(download, path, f"cannot be fetched ({reason})") from error
    except (zipfile.BadZipFile, zlib.error, KeyError, ValueError) as error:
        raise _failure(download, path, f"the download is damaged ({error})") from error
    write_bytes(path, content)
    return path


def _received(download: Download) -> bytes:
    request = urllib.request.Request(download.url, headers={"User-Agent": "mlx_attn"})
    content = bytearray()
    with urllib.request.urlopen(request, timeout=_STALL) as response:
        total = response.length or download.size
        while block := response.read1(_BLOCK):
            content += block
            log_progress("downloading bytes", len(content) - len(block), len(content), total)
    return bytes(content)


def _failure(download: Download, path: Path, fault: str) -> RunError:
    form = f"{download.member} of that archive" if download.member else "the file"
    way_out = f"try again, or put {form} at {path} by hand, or {download.instead}"
    return RunError(f"{download.url}: {fault}; {way_out}")


_TABLE = package_table("mlx_attn.text", "corpora")

CORPORA = {name: Download(file=f"{name}.txt", **row) for name, row in _TABLE.items()}

GPT2_MERGES = Download(
    url="https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/vocab.bpe",
    file="gpt2.vocab.bpe",
    size=456_318,
    digest="sha256:1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
    licence="MIT, modified (OpenAI)",
    instead="give --tokenizer with byte, or with a folder or file of such merges",
)


def data_directory() -> Path:
    """Return where corpora are: `MLX_ATTN_DATA_DIR`, `data/` in a clone, or the user's cache."""
    if chosen := os.environ.get("MLX_ATTN_DATA_DIR"):
        return user_path(chosen)
    readme = Path("data", "README.md")
    if readme.is_file() and "mlx_attn" in readme.read_text(encoding="utf-8", errors="replace"):
        return readme.parent
    return user_directory("cache")
