"""A text of any length as a stream of chunks that can be tokenized one by one.

A chunk ends after a character that is no white space and before a space or a newline. Every
tokenizer begins a new token there, whatever comes before and after, so that the tokens of the
chunks, one after the other, are the tokens of the text. Where there is no such place in `CHUNK`
characters (a text without spaces), the chunk ends there all the same, which for `bpe`, `unigram`
and `gpt2` may part one token in two.
"""

import codecs
import contextlib
import difflib
import hashlib
import json
import re
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Int64, UInt8, UInt16

from mlx_attn.errors import RunError
from mlx_attn.files import atomic_write, lock, write_text
from mlx_attn.text.characters import SymbolTokenizer
from mlx_attn.text.downloads import CORPORA, Progress, data_directory, fetch
from mlx_attn.text.subwords import sample
from mlx_attn.text.tasks import TASKS
from mlx_attn.text.token_store import Promise, TokenFile, encoding, worker_count
from mlx_attn.text.tokenizers import TRAINED, Tokenizer, load_tokenizer, train_tokenizer

if TYPE_CHECKING:
    from mlx_attn.text.stories.dataset import TalesText
    from mlx_attn.text.tasks import Documents

CHUNK = 1_000_000  # characters
# What is matched is all up to the last good place; white space is Unicode's.
_TO_LAST_EDGE = re.compile(r".*\S(?=[ \n])", re.DOTALL)


def chunked(blocks: Iterable[str]) -> Iterator[str]:
    """The text of `blocks` in chunks of at most `CHUNK` characters.

    Where they end depends on the text alone, not on its blocks, and not on what comes later: a text
    that is written on keeps all its chunks but the last.
    """
    held = ""
    for block in blocks:
        held += block
        while len(held) > CHUNK:
            found = _TO_LAST_EDGE.match(held, 0, CHUNK + 1)
            cut = found.end() if found else CHUNK
            yield held[:cut]
            held = held[cut:]
    if held:
        yield held


def between(pieces: Iterable[str], start: int, stop: int) -> Iterator[str]:
    """What the characters `start` to `stop` of a text in pieces are, piece by piece."""
    place = 0
    for piece in pieces:
        if part := piece[max(0, start - place) : max(0, stop - place)]:
            yield part
        place += len(piece)


def byte_offsets(tokenizer: Tokenizer, tokens: UInt16[np.ndarray, " N"]) -> Int64[np.ndarray, " N"]:
    """The offset in the text's UTF-8 of the first byte of each token."""
    lengths = _by_token(tokenizer, map(len, _pieces(tokenizer)))[tokens]
    return np.cumsum(lengths) - lengths


def token_abilities(
    tokenizer: Tokenizer,
    tokens: UInt16[np.ndarray, " N"],
    offsets: Int64[np.ndarray, " N"],
    byte_abilities: UInt8[np.ndarray, " M"],
) -> UInt8[np.ndarray, " N"]:
    """The ability that each token needs: that of its first byte that is not a space."""
    spaces = _by_token(tokenizer, map(_leading_spaces, _pieces(tokenizer)))[tokens]
    return byte_abilities[offsets + spaces]


def _pieces(tokenizer: Tokenizer) -> Iterable[bytes]:
    return map(tokenizer.token_bytes, range(tokenizer.vocab_size))


def _by_token(tokenizer: Tokenizer, values: Iterable[int]) -> Int64[np.ndarray, " V"]:
    return np.fromiter(values, np.int64, tokenizer.vocab_size)


def _leading_spaces(piece: bytes) -> int:
    rest = piece.lstrip(b" ")
    return len(piece) - len(rest) if rest else 0


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
        from mlx_attn.text.stories.dataset import tales

        told = tales(size, split=split)
        return Passage("\n" + told.text, told)

    digest = _digest_of_files(f"{_generator_digest()} {n_bytes} {val_bytes}".encode())
    return Source("tales", digest, lambda: (tell(n_bytes, "train"), tell(val_bytes, "val")))


def _task(name: str) -> Source:
    """A task's documents. They are drawn for their digest, which takes less than a second."""
    from mlx_attn.text.tasks import draw

    train = draw(name, TRAINING_DOCUMENTS, split="train")
    val = draw(name, VALIDATION_DOCUMENTS, split="val")
    content = [array.tobytes() for split in (train, val) for array in split.arrays().values()]
    digest = _digest_of_files(b"".join([*content, val.nats.tobytes(), repr(val.symbols).encode()]))
    passages = Passage(documents=train), Passage(documents=val)
    return Source(name, digest, lambda: passages, val.symbols)


@cache
def _generator_digest() -> str:
    """BLAKE2b of the generator's code, so that tales told by an older one are told again."""
    modules = sorted(Path(__file__).with_name("tales").glob("*.py"))
    return _digest_of_files(b"".join(module.read_bytes() for module in modules))


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


def _digest_of_files(content: bytes) -> str:
    return _blake2b(content).hexdigest()


def _blake2b(content: bytes = b"") -> "hashlib.blake2b":
    return hashlib.blake2b(content, digest_size=16)


DTYPES = {
    "tokens": np.uint16,
    "document_starts": np.int64,
    "token_abilities": np.uint8,
    "scored": np.uint8,
}
"""The arrays of a split, and what they are on disk."""


def build(
    folder: Path, source: Source, kind: str, vocab_size: int, progress: Progress | None
) -> None:
    """Prepares a text in `folder`, from where an interrupted preparation left it.

    Args:
        folder: Beside it lie other prepared corpora, whose tokens are taken over where they fit.
        source: The text.
        kind: The tokenizer, one of `tokenizers.KINDS` or `symbols`.
        vocab_size: For the trained tokenizers, the most tokens they may use.
        progress: Called with the bytes of text done and in all.

    Raises:
        ConfigError: The tokenizer or its vocabulary size cannot work.
        RunError: The text cannot be read, the folder cannot be written, or a process that tokenizes
            was ended.
    """
    tokenizer = _tokenizer(folder, kind, source, vocab_size)
    known, report = _known_tokens(folder), _sum_of(source.n_bytes, progress)
    splits: dict[str, Any] = {}
    with encoding(tokenizer, folder, worker_count(source.n_bytes)) as encode:
        for name, passage in (("train", source.train), ("val", source.val)):
            if not passage.documents:
                TokenFile(folder, name).write(passage.chunks(), encode, known, report)
            splits[name] = _record(folder, name, passage, tokenizer)
    write_text(folder / "corpus.json", json.dumps(splits, indent=1) + "\n")


def _tokenizer(folder: Path, kind: str, source: Source, vocab_size: int) -> Tokenizer:
    """The tokenizer that an interrupted preparation left in the folder, or a new one."""
    try:
        return load_tokenizer(folder)
    except RunError:
        tokenizer = _trained(kind, source, vocab_size, directory=folder.parent.parent)
        tokenizer.save(folder)
        return tokenizer


def _trained(kind: str, source: Source, vocab_size: int, directory: Path) -> Tokenizer:
    """A tokenizer, from as much of the text as it takes: bounded, whatever the text's length."""
    if source.symbols is not None:
        return SymbolTokenizer(source.symbols)
    text = ""
    if kind == "char":
        text = "".join(set().union(*source.train.chunks(), *source.val.chunks()))
    elif kind in TRAINED:
        text = sample(source.train.chunks(), source.train.n_characters)
    return train_tokenizer(kind, text, vocab_size, directory)


def _sum_of(total: int, progress: Progress | None) -> Callable[[int], None]:
    """A callback for bytes that have been done, which calls `progress` with those so far."""
    done = 0

    def report(n_bytes: int) -> None:
        nonlocal done
        done += n_bytes
        if progress and total:
            progress(done, total)

    return report


def _known_tokens(folder: Path) -> dict[str, Promise]:
    """The tokens that the same tokenizer made before of any chunk of any text, by digest."""
    ours = (folder / "tokenizer.json").read_bytes()
    known: dict[str, Promise] = {}
    for theirs in folder.parent.glob("*/tokenizer.json"):
        with contextlib.suppress(OSError):
            if theirs.parent != folder and theirs.read_bytes() == ours:
                for name in ("train", "val"):
                    known |= TokenFile(theirs.parent, name).promises()
    return known


def _record(
    folder: Path, name: str, passage: AnyPassage, tokenizer: Tokenizer
) -> dict[str, dict[str, Any]]:
    """Writes what is known of a split beside its tokens; returns lengths and facts, by name."""
    lengths: dict[str, int] = {}
    if passage.documents:
        arrays, facts = passage.documents.arrays(), passage.documents.facts()
    else:
        file = TokenFile(folder, name)
        chunks = file.chunks()
        lengths["tokens"] = sum(chunk.n_tokens for chunk in chunks)
        arrays, facts = {}, {"n_bytes": sum(chunk.n_bytes for chunk in chunks)}
        if passage.tales:
            tokens = np.fromfile(file.path, DTYPES["tokens"])
            arrays = _arrays_of_tales(passage.tales, tokens, tokenizer)
            facts |= _floors(passage.tales)
    for field, array in arrays.items():
        with atomic_write(folder / f"{name}.{field}.bin") as temporary:
            array.astype(DTYPES[field], copy=False).tofile(temporary)
        lengths[field] = len(array)
    return {"lengths": lengths, "facts": facts}


def _arrays_of_tales(
    tales: "TalesText", tokens: np.ndarray, tokenizer: Tokenizer
) -> dict[str, np.ndarray]:
    offsets = byte_offsets(tokenizer, tokens)
    # The newline that opens the stream is like the one that ends it, and moves all by a byte.
    abilities = np.roll(np.append(tales.abilities, tales.abilities[-1]), 1)
    return {
        "document_starts": np.searchsorted(offsets, tales.story_starts),
        "token_abilities": token_abilities(tokenizer, tokens, offsets, abilities),
    }


def _floors(tales: "TalesText") -> dict[str, Any]:
    from mlx_attn.text.stories.grammar import ABILITIES

    nats = (0.0 - tales.ability_log_probability).tolist()  # never -0.0
    return {
        "floor_nats": -tales.log_probability,
        "ability_floor_nats": dict(zip(ABILITIES, nats, strict=True)),
    }


_FORMAT = 1


@dataclass(frozen=True)
class Split:
    """One half of a corpus; the arrays are read-only maps of files.

    Attributes:
        tokens: Token ids.
        n_bytes: UTF-8 bytes that the tokens stand for; what bits per byte divides by.
        document_starts: Tales and tasks: the index of the newline token before each document, so
            that a window that starts there predicts the document's first token.
        token_abilities: Tales and tasks: index into their `ABILITIES`; for the tales, of the span
            that holds the token's first byte that is not a space.
        floor_nats: Tales and tasks: -log p of all scored tokens, in nats; no model does better on
            average.
        ability_floor_nats: Tales and tasks: the floor, ability by ability.
        scored: Tasks only: 1 for the tokens that count, else 0; in a text all but the first count.
    """

    tokens: UInt16[np.ndarray, " N"]
    n_bytes: int
    document_starts: Int64[np.ndarray, " D"] | None = None
    token_abilities: UInt8[np.ndarray, " N"] | None = None
    floor_nats: float | None = None
    ability_floor_nats: Mapping[str, float] | None = None
    scored: UInt8[np.ndarray, " N"] | None = None

    @property
    def n_scored(self) -> int:
        """Tokens that count for the loss."""
        return len(self.tokens) - 1 if self.scored is None else int(self.scored.sum())

    @property
    def floor(self) -> float | None:
        """The least loss in nats per scored token, where it is known."""
        return None if self.floor_nats is None else self.floor_nats / self.n_scored


@dataclass(frozen=True)
class Corpus:
    """A text, its tokenizer, and its tokens for training and validation."""

    name: str
    digest: str
    tokenizer: Tokenizer
    train: Split
    val: Split


def prepare(
    source: str,
    tokenizer: str = "char",
    vocab_size: int = 512,
    directory: Path | None = None,
    n_bytes: int = 6_000_000,
    val_bytes: int = 200_000,
    progress: Progress | None = None,
    tokenizing: Progress | None = None,
) -> Corpus:
    """The corpus that `source` names, from the data directory when it was prepared before.

    Args:
        source: What `sources.read_source` reads.
        tokenizer: One of `tokenizers.KINDS`. `char` takes its vocabulary from the whole text, the
            trained ones from the training split. A task has its own, whatever is said here.
        vocab_size: For the trained tokenizers, the most tokens they may use.
        directory: The data directory; `downloads.data_directory()` by default.
        n_bytes: For the tales, bytes of training text.
        val_bytes: For the tales, bytes of validation text.
        progress: Called with the bytes done and in all while a corpus is downloaded.
        tokenizing: Called with the bytes done and in all while a text is tokenized.

    Raises:
        ConfigError: The tokenizer or its vocabulary size cannot work.
        RunError: The text cannot be read, the data directory cannot be written, or a process that
            tokenizes was ended; what was done is kept, and the next call goes on from there.
    """
    directory = directory or data_directory()
    text = read_source(source, directory, n_bytes, val_bytes, progress)
    tokenizer = tokenizer if text.symbols is None else SymbolTokenizer.kind
    settings = (_FORMAT, text.digest, tokenizer, vocab_size if tokenizer in TRAINED else None)
    folder = directory / "prepared" / _digest(repr(settings))
    if corpus := _open(folder, text):
        return corpus
    with lock(folder):
        if corpus := _open(folder, text):  # another process was quicker
            return corpus
        build(folder, text, tokenizer, vocab_size, tokenizing)
    if corpus := _open(folder, text):
        return corpus
    raise RunError(f"{folder}: the prepared corpus does not read back; check the disk")


def _open(folder: Path, source: Source) -> Corpus | None:
    """The corpus prepared in `folder`; None when there is none or a file of it is damaged."""
    try:
        splits = json.loads((folder / "corpus.json").read_text(encoding="utf-8"))
        train, val = (_open_split(folder, name, splits[name]) for name in ("train", "val"))
        return Corpus(source.name, source.digest, load_tokenizer(folder), train, val)
    except (OSError, RunError, ValueError, KeyError, TypeError):
        return None


def _open_split(folder: Path, name: str, known: dict[str, Any]) -> Split:
    arrays = {
        field: _map(folder / f"{name}.{field}.bin", DTYPES[field], length)
        for field, length in known["lengths"].items()
    }
    return Split(**arrays, **known["facts"])


def _map(path: Path, dtype: type[np.generic], length: int) -> np.ndarray:
    expected = length * np.dtype(dtype).itemsize
    if path.stat().st_size != expected:
        raise ValueError(f"{path}: {path.stat().st_size} bytes, not {expected}")
    return np.memmap(path, dtype, "r", shape=(length,))


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
