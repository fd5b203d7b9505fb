"""The text of the study of two sizes: Python source from the wheels of ten packages.

`two-sizes.toml` names the packages, with versions and digests. The text is not committed: it is
downloaded and written again, and its digest is compared.
"""

import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from mlx_attn.errors import RunError
from mlx_attn.files import write_bytes

PLAIN = bytes([ord("\n"), *range(ord(" "), ord("~") + 1)])
"""The characters of the text: those of ASCII that are printed, and the newline."""


class Package(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A package whose modules are part of the text."""

    name: str
    version: str
    sha256: str  # of its wheel


class SourceText(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The text, and the rules by which it is made of the modules of packages."""

    packages: tuple[Package, ...]
    module_bytes: tuple[int, int]  # the least and the most of a module
    line_bytes: int  # the most of a line: longer ones hold data
    characters: int  # of the text
    validation: int  # tokens of the package's validation split that losses are of
    sha256: str  # of the text


def write_source(of: SourceText, folder: Path) -> Path:
    """Write `python.txt` from the wheels in a folder, which are downloaded if they are missing.

    Raises:
        RunError: A wheel or the text has another digest than the one that was registered.
    """
    archives = folder / "archives"
    if missing := [p for p in of.packages if not _wheel(archives, p)]:
        _download(missing, archives)
    text = source_bytes(of, archives)
    check("the text", text, of.sha256)
    path = folder / "python.txt"
    write_bytes(path, text)
    return path


def source_bytes(of: SourceText, archives: Path) -> bytes:
    """Return the text: modules in the order of their digests, with a blank line between them."""
    modules = dict[bytes, bytes]()
    for package in of.packages:
        wheel = _wheel(archives, package)
        if not wheel:
            raise RunError(f"{archives}: no wheel of {package.name} {package.version}")
        check(wheel.name, wheel.read_bytes(), package.sha256)
        # A copy of a module has its digest, and is left out.
        modules |= {hashlib.sha256(m).digest(): m for m in _modules(wheel, of)}
    return b"\n\n".join(modules[digest] for digest in sorted(modules))[: of.characters]


def _wheel(archives: Path, package: Package) -> Path | None:
    return next(archives.glob(f"{package.name}-{package.version}-*.whl"), None)


def _download(packages: list[Package], archives: Path) -> None:
    named = [f"{package.name}=={package.version}" for package in packages]
    pip: list[Any] = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", archives]
    if subprocess.run([*pip, "--only-binary=:all:", *named], check=False).returncode:
        raise RunError(f"pip cannot download {', '.join(named)}: see its message above")


def _modules(wheel: Path, of: SourceText) -> Iterator[bytes]:
    """Yield the modules that have a usual length, only plain characters, and no long line."""
    least, most = of.module_bytes
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            module = archive.read(name) if name.endswith(".py") else b""
            longest = max(map(len, module.split(b"\n")))
            is_plain = not module.translate(None, PLAIN)
            if is_plain and longest <= of.line_bytes and least <= len(module) <= most:
                yield module


def check(what: str, content: bytes, sha256: str) -> None:
    """Refuse content with another digest than the one that was registered."""
    if (found := hashlib.sha256(content).hexdigest()) != sha256:
        raise RunError(f"{what}: its SHA-256 is {found}, not {sha256}")
