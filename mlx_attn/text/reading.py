"""Files, folders and pipes as blocks of characters, which can be read again and again.

What is no UTF-8 text is refused with the place of the first byte that is none.
"""

import codecs
import contextlib
import tempfile
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from mlx_attn.errors import RunError

Blocks = Callable[[], Iterator[str]]
"""Reads a text from its beginning; no block is empty."""

_BLOCK = 1 << 20  # bytes
_PIPE_IN_MEMORY = 1 << 25  # bytes; what is longer goes to a temporary file
_SUFFIXES = {".txt", ".md"}


def path_blocks(path: Path) -> Blocks:
    """The text of a file, of a folder, or of what can be read but once, such as a named pipe.

    Raises:
        RunError: It cannot be read. Also when blocks are read, and then if they are no text.
    """
    if path.is_dir():
        return lambda: _folder(path)
    if path.is_file():
        return lambda: _file(path)
    with _explaining(path), path.open("rb") as file:
        return pipe_blocks(file.read, str(path))


def pipe_blocks(read: Callable[[int], bytes], name: str) -> Blocks:
    """The text of a pipe, which is read to its end now and kept."""
    kept = tempfile.SpooledTemporaryFile(_PIPE_IN_MEMORY)  # noqa: SIM115 - closed below
    for data in iter(lambda: read(_BLOCK), b""):
        kept.write(data)

    def blocks() -> Iterator[str]:
        return _decoded(kept, name)

    weakref.finalize(blocks, kept.close)
    return blocks


def _folder(folder: Path) -> Iterator[str]:
    """The texts of a folder and the folders in it, by path, with a blank line between them."""
    found = (path for path in folder.rglob("*") if path.suffix.lower() in _SUFFIXES)
    separator = ""
    for path in sorted(path for path in found if path.is_file()):
        for number, block in enumerate(_file(path)):
            yield block if number else separator + block
            separator = "\n\n"
    if not separator:
        raise RunError(f"{folder}: the folder holds no .txt or .md file with text in it")


def _file(path: Path) -> Iterator[str]:
    with _explaining(path), path.open("rb") as file:
        yield from _decoded(file, str(path))


@contextlib.contextmanager
def _explaining(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror or error})") from error


def _decoded(file: IO[bytes], name: str) -> Iterator[str]:
    """The characters of a file without a byte order mark; bytes are counted from after that."""
    decoder, done, data = codecs.getincrementaldecoder("utf-8")(), 0, b"unread"
    file.seek(0)
    file.seek(len(codecs.BOM_UTF8) if file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8 else 0)
    while data:
        data = file.read(_BLOCK)
        if (nul := data.find(0)) >= 0:
            raise RunError(
                f"{name}: not a text, byte {done + nul} is NUL; if it is UTF-16, convert it to "
                "UTF-8"
            )
        held = len(decoder.getstate()[0])  # the beginning of a character
        try:
            text = decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            raise RunError(
                f"{name}: not UTF-8, byte {done - held + error.start} is "
                f"0x{error.object[error.start]:02x} ({error.reason}); convert it to UTF-8"
            ) from error
        done += len(data)
        if text:
            yield text
