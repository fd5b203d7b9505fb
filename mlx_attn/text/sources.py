"""Sources of text: stories, a task, a corpus by name, a file, a folder or a pipe."""

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from mlx_attn.errors import RunError, did_you_mean, plural
from mlx_attn.files import digest, user_path
from mlx_attn.records import parse_record, unix_lines
from mlx_attn.text import downloads, tasks
from mlx_attn.text.downloads import CORPORA
from mlx_attn.text.stories import StoryCorpus, generate_stories

_LOG = logging.getLogger(__name__)

LONGEST = 1_000_000_000  # bytes: a text is read into memory, and a pipe may be endless
TALES_BYTES = 6_000_000, 200_000  # of the stories for training and for validation
TRAINING_DOCUMENTS = 20_000  # of a task
VALIDATION_DOCUMENTS = 500
_SHORTEST = 20  # characters: two of them for validation
_TRAINING_SHARE = 0.9
_SUFFIXES = {".txt", ".md"}
_NOT_TEXTS = {"node_modules", "venv", "env", "site-packages", "__pycache__", "__MACOSX"}
"""Folders that programs fill. Hidden ones are skipped too: deleted notes, versions, copies."""
_NAMED = 8  # of the files that are passed over
_BLOCK = 1 << 20  # bytes

# Identifies the text of the stories, and with it runs and prepared corpora that were made from it:
# change it whenever the generator writes another text (a test has a golden digest).
_STORY_GENERATOR = "8ffc3e7bcaf80f3ddabfa4de27c730d8"


@dataclass(frozen=True)
class SplitText:
    """One split of a source: a text, or the documents of a task."""

    text: str = ""
    stories: StoryCorpus | None = None  # the stories of a generated text
    documents: tasks.Documents | None = None


@dataclass(frozen=True)
class Source:
    """A text by name and content."""

    name: str
    # BLAKE2b of the content, in hexadecimal; for stories, of everything that determines them, so
    # that they are generated only when `splits` is called.
    digest: str
    splits: Callable[[], tuple[SplitText, SplitText]]  # makes the training and the validation split
    text: str = ""  # a text that was read; "" for one that is generated
    symbols: Sequence[str] | None = None  # a task's vocabulary, which replaces any other tokenizer
    notes: tuple[str, ...] = ()  # about the reading of the text: files left out, line ends


def read_source(source: str, directory: Path) -> Source:
    """Read the text that `source` names, from the data directory if it is a corpus.

    It is `tales`, a name in `TASKS` or `CORPORA`, a file, a folder of .txt and .md files, or `-`
    for standard input. A name wins over a file of that name; write `./tales` for the file. Of a
    folder, what is hidden, folders of programs, and copies are left out.

    Raises:
        RunError: The text is missing, unreadable, not a text, too short or too long.
    """
    if source == "tales":
        return _stories(*TALES_BYTES)
    if task := tasks.task_of(source):
        return _task(task)
    if source == "-":
        if sys.stdin.isatty():
            _LOG.info("reading the text from the terminal; Ctrl-D ends it")
        return _split("standard input", _decoded(sys.stdin.buffer, "standard input"))
    is_corpus = source in CORPORA
    path = downloads.fetch(CORPORA[source], directory) if is_corpus else user_path(source)
    if not path.exists():
        names = ["tales", *CORPORA, *tasks.TASKS]
        hint = did_you_mean(source.lower().partition(":")[0], names)
        if path.suffix or path.name != source:  # no corpus has such a name
            hint = ": put it there, or give its place with --data"
        raise RunError(f"{source}: no such file, folder or corpus{hint}")
    try:
        return _split(source, *(_folder(path) if path.is_dir() else (_file(path), ())))
    except OSError as error:
        reason = error.strerror or error
        raise RunError(f"{error.filename or path}: cannot be read ({reason})") from error


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
        stories = generate_stories(size, split)
        # A newline comes first, so that every story's first letter is predicted from a newline.
        return SplitText("\n" + stories.text, stories)

    made_by = digest(f"{_STORY_GENERATOR} {n_bytes} {val_bytes}".encode())
    return Source("tales", made_by, lambda: (part(n_bytes, "train"), part(val_bytes, "val")))


def _task(task: tasks.Task) -> Source:
    """Return a task's documents, generated at once for their digest, in less than a second."""
    train = task.draw(TRAINING_DOCUMENTS, "train")
    val = task.draw(VALIDATION_DOCUMENTS, "val")
    content = [array.tobytes() for split in (train, val) for array in split.arrays().values()]
    content += [val.nats.round(9).tobytes(), repr(val.symbols).encode()]  # a log's last bit varies
    splits = SplitText(documents=train), SplitText(documents=val)
    return Source(task.name, digest(b"".join(content)), lambda: splits, symbols=val.symbols)


def _split(name: str, text: str, notes: Sequence[str] = ()) -> Source:
    """Return a text as a source, nine tenths of it for training; refuse one without content."""
    if (read := unix_lines(text)) != text:
        text, notes = read, (*notes, f"{name}: line ends CRLF and CR are read as LF")
    if len(text) < _SHORTEST:
        count = plural(len(text), "character")
        raise RunError(f"{name}: {count}, too few: give at least {_SHORTEST}")
    if text.count(text[0]) == len(text):
        raise RunError(f"{name}: every character is {text[0]!r}, so there is nothing to learn")
    cut = int(_TRAINING_SHARE * len(text))
    splits = SplitText(text[:cut]), SplitText(text[cut:])
    return Source(name, digest(text.encode()), lambda: splits, text, notes=tuple(notes))


def _is_json(text: str) -> bool:
    """Return whether a text is a JSON object or array, or has an object in its first line."""
    text = text.lstrip()
    parts = {"{": (text.partition("\n")[0], text), "[": (text,)}
    for part in parts.get(text[:1], ()):
        with suppress(RunError):
            parse_record(part, list if part[0] == "[" else dict, "a text")
            return True
    return False


def _file(path: Path) -> str:
    with path.open("rb") as file:
        return _decoded(file, str(path))


def _folder(folder: Path) -> tuple[str, tuple[str, ...]]:
    """Return the texts of a folder and its subfolders, by path, with a blank line between them.

    A copy of a text is left out: its twin might be in the other split. Also returns a line about
    the files.
    """
    found = [*_found_in(folder)]
    others = sum(kind == "other" for kind, _ in found)
    skipped = sorted(str(path.relative_to(folder)) for kind, path in found if kind == "skipped")
    skipped += [f"{plural(others, 'file')} neither .txt nor .md"] if others else []
    texts: list[str] = []
    first: dict[str, Path] = {"": folder}  # the first file of each text, whatever its line ends
    for path in sorted(path for kind, path in found if kind == "text"):
        if not path.resolve().is_relative_to(folder.resolve()):
            raise RunError(f"{path}: a link out of {folder}, to {path.resolve()}: put a copy there")
        text = _file(path)
        twin = first.setdefault(unix_lines(text).strip(), path)
        if twin == path:
            texts.append(text)
        elif twin != folder:
            copy, original = (file.relative_to(folder) for file in (path, twin))
            skipped.append(f"{copy} (the same as {original})")
    more = f", and {len(skipped) - _NAMED} more" if len(skipped) > _NAMED else ""
    left_out = f"; skipped: {', '.join(skipped[:_NAMED])}{more}" if skipped else ""
    if not texts:
        raise RunError(f"{folder}: the folder holds no .txt or .md file with text in it{left_out}")
    text = "\n\n".join(texts)
    size = f"{max(1, round(len(text.encode()) / 1000)):,} kB"
    return text, (f"{folder}: {plural(len(texts), 'file')}, {size}{left_out}",)


def _found_in(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files below a folder as "text" or "other", and what is not read as "skipped"."""
    for path in folder.iterdir():
        is_folder = path.is_dir()
        if path.name[0] == "." or (is_folder and (path.name in _NOT_TEXTS or path.is_symlink())):
            yield "skipped", path
        elif is_folder:
            yield from _found_in(path)
        else:
            is_text = path.suffix.lower() in _SUFFIXES and path.is_file()
            yield "text" if is_text else "other", path


def _decoded(file: IO[bytes], name: str) -> str:
    """Return the text of a file or a pipe, without a byte order mark."""
    data = bytearray()
    while block := file.read(_BLOCK):
        if (nul := block.find(0)) >= 0:
            raise RunError(
                f"{name}: not a text, byte {len(data) + nul} is NUL: convert UTF-16 to UTF-8, "
                "unpack what is compressed"
            )
        data += block
        if len(data) > LONGEST:
            raise RunError(f"{name}: more than {LONGEST:,} bytes of text: give a part of it")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RunError(
            f"{name}: not UTF-8, byte {error.start} is 0x{error.object[error.start]:02x} "
            f"({error.reason}); convert it to UTF-8"
        ) from error
    if text.startswith(r"{\rtf"):  # as TextEdit saves what is typed into it
        raise RunError(
            f"{name}: RTF and not a text, so its markup would be learned: save it as plain text, "
            "on a Mac with 'textutil -convert txt FILE'"
        )
    if _is_json(text):
        raise RunError(
            f"{name}: JSON and not a text, so braces and keys would be learned: write what the "
            "records say to a .txt file, with a blank line between documents"
        )
    return text
