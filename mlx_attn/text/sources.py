"""Sources of text: stories, a task, a corpus by name, a file, a folder or a pipe.

A text from a file may be larger than memory: it is read as a stream of chunks, never as a whole.
A chunk ends after a character that is not white space and before a space or a newline. Every
tokenizer begins a new token there, so the tokens of the chunks, concatenated, are the tokens of the
text. A text without such a place within `CHUNK` characters is cut there all the same, which for
`bpe`, `unigram` and `gpt2` may split one token in two.
"""

import codecs
import contextlib
import difflib
import hashlib
import os
import re
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

from mlx_attn.errors import ConfigError, RunError
from mlx_attn.files import user_path
from mlx_attn.parts import PARTS, Part, own_part
from mlx_attn.text import downloads, tasks
from mlx_attn.text.downloads import CORPORA, Progress

if TYPE_CHECKING:
    from mlx_attn.text.stories.dataset import StoryCorpus

CHUNK = 1_000_000  # characters
_TRAINING_SHARE = 0.9
SHORTEST = 20  # characters: two of them for validation
TRAINING_DOCUMENTS = 20_000  # of a task
VALIDATION_DOCUMENTS = 500

# Identifies the text of the stories, and with it runs and prepared corpora that were made from it:
# change it whenever the generator writes another text (a test has a golden digest).
_STORY_GENERATOR = "8ffc3e7bcaf80f3ddabfa4de27c730d8"

_BLOCK = 1 << 20  # bytes
LONGEST_PIPE = 4_000_000_000  # bytes: an endless pipe must not fill the disk
_PIPE_IN_MEMORY = 1 << 25  # bytes; the rest of a longer pipe goes to a temporary file
_SUFFIXES = {".txt", ".md"}
# Matches everything up to the last place where a chunk may end; white space is Unicode's.
_TO_LAST_EDGE = re.compile(r".*\S(?=[ \n])", re.DOTALL)

Blocks = Callable[[], Iterator[str]]
"""Reads a text from its beginning; no block is empty."""


@dataclass(frozen=True)
class SplitText:
    """One split of a source: a text, or the documents of a task."""

    # Reads the text from its beginning. Raises RunError where it cannot be read, or has changed
    # since.
    chunks: Blocks = lambda: iter(())
    n_characters: int = 0
    stories: "StoryCorpus | None" = None
    documents: tasks.Documents | None = None  # the documents of a task, which are not text


@dataclass(frozen=True)
class Source:
    """A text by name and content."""

    name: str
    # BLAKE2b of the content, in hexadecimal; for stories, of everything that determines them, so
    # that they are generated only when `splits` is called.
    digest: str
    splits: Callable[[], tuple[SplitText, SplitText]]  # makes the training and the validation split
    # The vocabulary of a task, which replaces any other tokenizer; None for a text.
    symbols: Sequence[str] | None = None
    n_bytes: int = 0  # UTF-8 bytes of a text that is read; 0 for one that is generated


def read_source(
    source: str,
    directory: Path,
    n_bytes: int = 6_000_000,
    val_bytes: int = 200_000,
    progress: Progress | None = None,
) -> Source:
    """Read the text that `source` names.

    Args:
        source: `tales`, a name in `TASKS` or `CORPORA`, a file, a folder of .txt and .md files, or
            `-` for standard input. A name wins over a file of that name; write `./tales` for the
            file.
        directory: The data directory, for downloads.
        n_bytes: For stories, bytes of training text.
        val_bytes: For stories, bytes of validation text.
        progress: Called with the bytes done and in all while a corpus is downloaded.

    Raises:
        RunError: The text is missing, unreadable, not a text, or too short.
    """
    if source == "tales":
        return _stories(n_bytes, val_bytes)
    if task := tasks.task_of(source):
        return _task(task)
    if own := own_part("data", source):
        return _text(source, _own_blocks(own))
    if source == "-":
        return _text("standard input", _pipe_blocks(sys.stdin.buffer.read, "standard input"))
    if source in CORPORA:
        return _text(source, _path_blocks(downloads.fetch(CORPORA[source], directory, progress)))
    path = user_path(source)
    if not path.exists():
        names = ["tales", *CORPORA, *tasks.all_tasks(), *PARTS["data"]]
        near = difflib.get_close_matches(source.lower().partition(":")[0], names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"a corpus is one of {', '.join(names)}"
        raise RunError(f"{source}: no such file, folder or corpus; {hint}")
    return _text(source, _path_blocks(path))


def document_edges(name: str) -> tuple[str, str]:
    """Return the texts before and after each document of the source of that name; "" for none."""
    if name == "tales" or tasks.task_of(name):
        return "\n", "\n"
    row = CORPORA.get(name)
    return (row.document_start, row.document_end) if row else ("", "")


def describe(name: str) -> str:
    """Return words for the text of the source of that name: "made-up stories"."""
    if name == "tales":
        return "made-up stories"
    if tasks.task_of(name):
        return f"symbols of the task {name}"
    return Path(name).name or "another text"


def _stories(n_bytes: int, val_bytes: int) -> Source:
    def part(size: int, split: Literal["train", "val"]) -> SplitText:
        from mlx_attn.text.stories import dataset

        stories = dataset.generate_stories(size, split=split)
        # A newline comes first, so that every story's first letter is predicted from a newline.
        text = "\n" + stories.text
        return SplitText(lambda: iter([text]), len(text), stories)

    digest = _blake2b(f"{_STORY_GENERATOR} {n_bytes} {val_bytes}".encode()).hexdigest()
    return Source("tales", digest, lambda: (part(n_bytes, "train"), part(val_bytes, "val")))


def _task(task: tasks.Task) -> Source:
    """Return a task's documents, generated at once for their digest, in less than a second."""
    train = task.draw(TRAINING_DOCUMENTS, "train")
    val = task.draw(VALIDATION_DOCUMENTS, "val")
    content = [array.tobytes() for split in (train, val) for array in split.arrays().values()]
    content += [val.nats.tobytes(), repr(val.symbols).encode()]
    splits = SplitText(documents=train), SplitText(documents=val)
    return Source(task.name, _blake2b(b"".join(content)).hexdigest(), lambda: splits, val.symbols)


def _text(name: str, blocks: Blocks) -> Source:
    digest, n_bytes, n_characters = _survey(name, blocks())

    def part(start: int, stop: int) -> SplitText:
        def chunks() -> Iterator[str]:
            return _between(chunked(_unchanged(name, blocks(), digest)), start, stop)

        return SplitText(chunks, stop - start)

    cut = int(_TRAINING_SHARE * n_characters)
    splits = part(0, cut), part(cut, n_characters)
    return Source(name, digest, lambda: splits, n_bytes=n_bytes)


def _own_blocks(part: Part) -> Blocks:
    """Return the text that a user's function yields."""

    def blocks() -> Iterator[str]:
        made = part.apply() if part.apply else ()
        for block in [made] if isinstance(made, str) else made:
            if not isinstance(block, str):
                kind = type(block).__name__
                raise ConfigError(f"data={part.name} must yield texts (str), and yielded a {kind}")
            yield from [block] if block else []

    return blocks


def _survey(name: str, blocks: Iterable[str]) -> tuple[str, int, int]:
    """Read a text once; return its digest, its bytes and its characters."""
    content, n_bytes, n_characters, first, uniform = _blake2b(), 0, 0, "", True
    for block in blocks:
        data = block.encode()
        content.update(data)
        n_bytes, n_characters = n_bytes + len(data), n_characters + len(block)
        first = first or block[0]
        uniform = uniform and block.count(first) == len(block)
    if not first:
        raise RunError(f"{name}: the text is empty; give one of at least {SHORTEST} characters")
    if n_characters < SHORTEST:
        are = "character is" if n_characters == 1 else "characters are"
        raise RunError(f"{name}: {n_characters} {are} too few; give at least {SHORTEST}")
    if uniform:
        raise RunError(f"{name}: every character is {first!r}, so there is nothing to learn")
    return content.hexdigest(), n_bytes, n_characters


def _unchanged(name: str, blocks: Iterable[str], digest: str) -> Iterator[str]:
    """Yield the blocks; raise RunError after the last one if together they have another digest."""
    content = _blake2b()
    for block in blocks:
        content.update(block.encode())
        yield block
    if content.hexdigest() != digest:
        raise RunError(f"{name}: the text changed while it was read; run this again")


def chunked(blocks: Iterable[str]) -> Iterator[str]:
    """Yield the text of `blocks` in chunks of at most `CHUNK` characters, whatever the blocks."""
    held = ""
    for block in blocks:
        held += block
        while len(held) > CHUNK:
            edge = _TO_LAST_EDGE.match(held, 0, CHUNK + 1)
            cut = edge.end() if edge else CHUNK
            yield held[:cut]
            held = held[cut:]
    if held:
        yield held


def _between(chunks: Iterable[str], start: int, stop: int) -> Iterator[str]:
    """Yield the characters `start` to `stop` of a text in chunks, chunk by chunk."""
    offset = 0
    for chunk in chunks:
        if part := chunk[max(0, start - offset) : max(0, stop - offset)]:
            yield part
        offset += len(chunk)


def _path_blocks(path: Path) -> Blocks:
    """Return the text of a file, of a folder, or of a named pipe, which can be read only once."""
    if path.is_dir():
        return lambda: _folder(path)
    if path.is_file():
        return lambda: _file(path)
    with _explaining(path), path.open("rb") as file:
        return _pipe_blocks(file.read, str(path))


def _pipe_blocks(read: Callable[[int], bytes], name: str) -> Blocks:
    """Read a pipe to its end and keep its text; RunError if that is too long, or no text."""
    kept = tempfile.SpooledTemporaryFile(_PIPE_IN_MEMORY)  # noqa: SIM115 - closed below

    def copied(size: int) -> bytes:
        data = read(size)
        kept.write(data)
        if kept.tell() > LONGEST_PIPE:
            raise RunError(
                f"{name}: more than {LONGEST_PIPE:,} bytes came through a pipe without an end: "
                "name a file, which may be longer"
            )
        return data

    def blocks() -> Iterator[str]:
        return _decoded(kept, name)

    weakref.finalize(blocks, kept.close)
    with _explaining(Path(name)):
        for _ in _characters(copied, name):  # stops at bytes that are not text
            pass
    return blocks


def _folder(folder: Path) -> Iterator[str]:
    """Yield the texts of a folder and its subfolders, by path, with a blank line between them.

    One that cannot be read, or is a link out of the folder, is refused.
    """

    def refuse(error: OSError) -> None:
        raise RunError(f"{error.filename}: cannot be read ({error.strerror})") from error

    walk = os.walk(folder, onerror=refuse)
    files = (Path(place, name) for place, _, names in walk for name in names)
    texts = sorted(file for file in files if file.suffix.lower() in _SUFFIXES and file.is_file())
    for path in texts:
        if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
            raise RunError(
                f"{path}: a link out of {folder}, to {path.resolve()}: put a copy there, or take "
                "the link away"
            )
    separator = ""
    for path in texts:
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
    """Return the characters of a file, without a byte order mark, which no error message counts."""
    file.seek(0)
    file.seek(len(codecs.BOM_UTF8) if file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8 else 0)
    return _characters(file.read, name)


def _characters(read: Callable[[int], bytes], name: str) -> Iterator[str]:
    """Yield the characters of a file, block by block; RunError if it is not text."""
    decoder, done, data = codecs.getincrementaldecoder("utf-8")(), 0, b"unread"
    while data:
        data = read(_BLOCK)
        if (nul := data.find(0)) >= 0:
            raise RunError(
                f"{name}: not a text, byte {done + nul} is NUL; if it is UTF-16, convert it to "
                "UTF-8"
            )
        held = len(decoder.getstate()[0])  # first bytes of a character that the block cut
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


def _blake2b(content: bytes = b"") -> "hashlib.blake2b":
    return hashlib.blake2b(content, digest_size=16)
