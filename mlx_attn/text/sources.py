"""Reads any text: tales, a probing task, a named corpus, a file, a folder, standard input.

A text is split once, in the order it is written: the first nine tenths of its characters are for
training, the rest for validation (as nanoGPT does). The tales and the tasks are two independent
draws instead.
"""

import difflib
import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mlx_attn.errors import RunError
from mlx_attn.text.chunks import between, chunked
from mlx_attn.text.downloads import CORPORA, Progress, fetch
from mlx_attn.text.reading import Blocks, path_blocks, pipe_blocks
from mlx_attn.text.tasks import TASKS

if TYPE_CHECKING:
    from mlx_attn.text.tales import TalesText
    from mlx_attn.text.tasks import Documents

TRAINING_SHARE = 0.9
SHORTEST = 20  # characters: two of them for validation
TRAINING_DOCUMENTS = 20_000  # of a task
VALIDATION_DOCUMENTS = 500


@dataclass(frozen=True)
class Passage:
    """One split, made in memory: a text, for the tales also what is known of it; or documents."""

    text: str = ""
    tales: "TalesText | None" = None
    documents: "Documents | None" = None

    @property
    def n_characters(self) -> int:
        """The length of the text."""
        return len(self.text)

    def chunks(self) -> Iterator[str]:
        """The whole text."""
        return iter([self.text])


@dataclass(frozen=True)
class LongPassage:
    """One split of a text that is read when it is needed, chunk by chunk.

    Attributes:
        whole: Reads the chunks of the whole text.
        start: The first character of the split.
        stop: The character after its last one.
    """

    whole: Callable[[], Iterator[str]]
    start: int
    stop: int
    tales: None = None
    documents: None = None

    def chunks(self) -> Iterator[str]:
        """The chunks of the text, those at the ends of the split in part.

        Raises:
            RunError: The text cannot be read, or is another by now.
        """
        return between(self.whole(), self.start, self.stop)

    @property
    def n_characters(self) -> int:
        """The length of the split."""
        return self.stop - self.start

    @property
    def text(self) -> str:
        """All of it, in memory."""
        return "".join(self.chunks())


AnyPassage = Passage | LongPassage


@dataclass(frozen=True)
class Source:
    """A text by name and content.

    Attributes:
        name: What a person calls it.
        digest: BLAKE2b of the content, in hexadecimal. For the tales, of all that determines them,
            so that they are written only when `train` or `val` is asked for.
        passages: Makes the training and the validation passage.
        symbols: The vocabulary of a task, which needs no other tokenizer; None for a text.
        n_bytes: UTF-8 bytes of a text that is read; 0 for one that is still to be made.
    """

    name: str
    digest: str
    passages: Callable[[], tuple[AnyPassage, AnyPassage]]
    symbols: Sequence[str] | None = None
    n_bytes: int = 0

    @cached_property
    def _both(self) -> tuple[AnyPassage, AnyPassage]:
        return self.passages()

    @property
    def train(self) -> AnyPassage:
        """What to train on."""
        return self._both[0]

    @property
    def val(self) -> AnyPassage:
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
        return _text_source("standard input", pipe_blocks(sys.stdin.buffer.read, "standard input"))
    if source in CORPORA:
        return _text_source(source, path_blocks(fetch(CORPORA[source], directory, progress)))
    path = Path(source).expanduser()
    if not path.exists():
        raise _missing(source)
    return _text_source(source, path_blocks(path))


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


def _text_source(name: str, blocks: Blocks) -> Source:
    survey = _survey(name, blocks())
    cut = int(TRAINING_SHARE * survey.n_characters)

    def chunks() -> Iterator[str]:
        return chunked(_unchanged(name, blocks(), survey.digest))

    def passages() -> tuple[LongPassage, LongPassage]:
        return LongPassage(chunks, 0, cut), LongPassage(chunks, cut, survey.n_characters)

    return Source(name, survey.digest, passages, n_bytes=survey.n_bytes)


@dataclass(frozen=True, slots=True)
class _Survey:
    """What is known of a text that was read once."""

    digest: str
    n_bytes: int
    n_characters: int


def _survey(name: str, blocks: Iterable[str]) -> _Survey:
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
        raise RunError(f"{name}: {n_characters} characters are too few; give at least {SHORTEST}")
    if uniform:
        raise RunError(f"{name}: every character is {first!r}, so there is nothing to learn")
    return _Survey(content.hexdigest(), n_bytes, n_characters)


def _unchanged(name: str, blocks: Iterable[str], digest: str) -> Iterator[str]:
    """The blocks, as long as they are together what they were."""
    content = _blake2b()
    for block in blocks:
        content.update(block.encode())
        yield block
    if content.hexdigest() != digest:
        raise RunError(f"{name}: the text changed while it was read; run this again")


def _missing(source: str) -> RunError:
    names = ["tales", *CORPORA, *TASKS]
    near = difflib.get_close_matches(source.lower(), names, n=1)
    hint = f"did you mean {near[0]}?" if near else f"a corpus is one of {', '.join(names)}"
    return RunError(f"{source}: no such file, folder or corpus; {hint}")


def _digest(content: bytes) -> str:
    return _blake2b(content).hexdigest()


def _blake2b(content: bytes = b"") -> "hashlib.blake2b":
    return hashlib.blake2b(content, digest_size=16)
