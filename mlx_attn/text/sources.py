"""Reads any text: tales, a probing task, a named corpus, a file, a folder, standard input.

A text is split once, in the order it is written: the first nine tenths of its characters are for
training, the rest for validation (as nanoGPT does). The tales and the tasks are two independent
draws instead.
"""

import difflib
import hashlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mlx_attn.errors import RunError
from mlx_attn.text.downloads import CORPORA, Progress, fetch
from mlx_attn.text.tasks import TASKS

if TYPE_CHECKING:
    from mlx_attn.text.tales import TalesText
    from mlx_attn.text.tasks import Documents

TRAINING_SHARE = 0.9
SHORTEST = 20  # characters: two of them for validation
TRAINING_DOCUMENTS = 20_000  # of a task
VALIDATION_DOCUMENTS = 500
_SUFFIXES = {".txt", ".md"}
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Passage:
    """One split: a text, for the tales also what the generator knows of it; or documents alone."""

    text: str = ""
    tales: "TalesText | None" = None
    documents: "Documents | None" = None


@dataclass(frozen=True)
class Source:
    """A text by name and content.

    Attributes:
        name: What a person calls it.
        digest: BLAKE2b of the content, in hexadecimal. For the tales, of all that determines them,
            so that they are written only when `train` or `val` is asked for.
        passages: Makes the training and the validation passage.
        symbols: The vocabulary of a task, which needs no other tokenizer; None for a text.
    """

    name: str
    digest: str
    passages: Callable[[], tuple[Passage, Passage]]
    symbols: Sequence[str] | None = None

    @cached_property
    def _both(self) -> tuple[Passage, Passage]:
        return self.passages()

    @property
    def train(self) -> Passage:
        """What to train on."""
        return self._both[0]

    @property
    def val(self) -> Passage:
        """What to validate on."""
        return self._both[1]


def read_source(
    source: str,
    directory: Path,
    n_bytes: int = 6_000_000,
    val_bytes: int = 200_000,
    progress: Progress | None = None,
) -> Source:
    """Reads the text that `source` names.

    Args:
        source: `tales`, a name in `TASKS` or `CORPORA`, a file, a folder of .txt and .md files, or
            `-` for standard input. A name wins over a file of that name; write `./tales` for the
            file.
        directory: The data directory, for downloads.
        n_bytes: For the tales, bytes of training text.
        val_bytes: For the tales, bytes of validation text.
        progress: Called with the bytes done and in all while a corpus is downloaded.

    Raises:
        RunError: The text is missing, unreadable, no text, or too short; says which and what to do.
    """
    if source == "tales":
        return _tales(n_bytes, val_bytes)
    if source in TASKS:
        return _task(source)
    if source == "-":
        return _text_source("standard input", _decode(sys.stdin.buffer.read(), "standard input"))
    if source in CORPORA:
        return _text_source(source, _read_file(fetch(CORPORA[source], directory, progress)))
    path = Path(source).expanduser()
    if path.is_dir():
        return _text_source(source, _read_folder(path))
    return _text_source(source, _read_file(path))


def _tales(n_bytes: int, val_bytes: int) -> Source:
    """The tales, after one newline: a model predicts every story's first letter from a newline."""

    def tell(size: int, split: Literal["train", "val"]) -> Passage:
        from mlx_attn.text.tales import tales

        told = tales(size, split=split)
        return Passage("\n" + told.text, told)

    digest = _digest(f"{_generator_digest()} {n_bytes} {val_bytes}".encode())
    return Source("tales", digest, lambda: (tell(n_bytes, "train"), tell(val_bytes, "val")))


def _task(name: str) -> Source:
    """A task's documents. They are drawn for their digest, which takes less than a second."""
    from mlx_attn.text.tasks import draw

    train = draw(name, TRAINING_DOCUMENTS, split="train")
    val = draw(name, VALIDATION_DOCUMENTS, split="val")
    content = [array.tobytes() for split in (train, val) for array in split.arrays().values()]
    digest = _digest(b"".join([*content, val.nats.tobytes(), repr(val.symbols).encode()]))
    passages = Passage(documents=train), Passage(documents=val)
    return Source(name, digest, lambda: passages, val.symbols)


@cache
def _generator_digest() -> str:
    """BLAKE2b of the generator's code, so that tales told by an older one are told again."""
    modules = sorted(Path(__file__).with_name("tales").glob("*.py"))
    return _digest(b"".join(module.read_bytes() for module in modules))


def _text_source(name: str, text: str) -> Source:
    if not text:
        raise RunError(f"{name}: the text is empty; give one of at least {SHORTEST} characters")
    if len(text) < SHORTEST:
        raise RunError(f"{name}: {len(text)} characters are too few; give at least {SHORTEST}")
    if text.count(text[0]) == len(text):
        raise RunError(f"{name}: every character is {text[0]!r}, so there is nothing to learn")
    cut = int(TRAINING_SHARE * len(text))
    return Source(name, _digest(text.encode()), lambda: (Passage(text[:cut]), Passage(text[cut:])))


def _read_folder(folder: Path) -> str:
    """The texts of a folder and the folders in it, by path, with a blank line between them."""
    found = (path for path in folder.rglob("*") if path.suffix.lower() in _SUFFIXES)
    paths = sorted(path for path in found if path.is_file())
    texts = [text for path in paths if (text := _read_file(path))]
    if not texts:
        raise RunError(f"{folder}: the folder holds no .txt or .md file with text in it")
    return "\n\n".join(texts)


def _read_file(path: Path) -> str:
    try:
        return _decode(path.read_bytes(), str(path))
    except FileNotFoundError as error:
        raise _missing(str(path)) from error
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror or error})") from error


def _missing(source: str) -> RunError:
    names = ["tales", *CORPORA, *TASKS]
    near = difflib.get_close_matches(source.lower(), names, n=1)
    hint = f"did you mean {near[0]}?" if near else f"a corpus is one of {', '.join(names)}"
    return RunError(f"{source}: no such file, folder or corpus; {hint}")


def _decode(data: bytes, name: str) -> str:
    data = data.removeprefix(_BYTE_ORDER_MARK)
    if (offset := data.find(0)) >= 0:
        raise RunError(
            f"{name}: not a text, byte {offset} is NUL; if it is UTF-16, convert it to UTF-8"
        )
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise RunError(
            f"{name}: not UTF-8, byte {error.start} is 0x{data[error.start]:02x} "
            f"({error.reason}); convert it to UTF-8"
        ) from error


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
