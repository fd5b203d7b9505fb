"""Tokenizers of subwords: SentencePiece, made lossless, and the byte-level BPE of GPT-2.

Kudo and Richardson, "SentencePiece: A simple and language independent subword tokenizer and
detokenizer for Neural Text Processing", 2018 (arXiv 1808.06226); the unigram model: Kudo, "Subword
Regularization", 2018 (arXiv 1804.10959).

SentencePiece writes a space as U+2581, so that a text with that character in it does not come back,
and it stops at NUL. Here a text is cut into words first; U+2581, NUL and the newline become byte
tokens, and each distinct word is encoded once. No piece holds a space but at its start, so cutting
before every space changes nothing in the result, and encoding is as fast as a dictionary.
"""

import functools
import hashlib
import io
import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path

import numpy as np
import sentencepiece
from jaxtyping import UInt16

from mlx_attn.errors import ConfigError, RunError
from mlx_attn.files import write_bytes, write_text
from mlx_attn.records import read_bytes, read_text
from mlx_attn.text import characters, downloads

_SMALLEST_VOCABULARY = 320  # 256 bytes, the unknown token, and room for letters and pieces
SAMPLE = 4_000_000  # characters of text that a vocabulary is trained on, at most
_PASSAGES = 64  # of the sample
_ALWAYS_BYTES = "\n\0\u2581"
# A space belongs to the word that follows it. SentencePiece's trainer breaks on huge words.
_WORDS = re.compile(rf"[{_ALWAYS_BYTES}]| ?[^ {_ALWAYS_BYTES}]{{1,1000}}| ")


def _encode_by_word(
    words: list[str],
    encode: Callable[[list[str]], Iterable[list[int]]],
    known: Mapping[str, list[int]],
) -> UInt16[np.ndarray, " N"]:
    """Return the token ids of a text in words; encode each distinct word only once, for speed."""
    distinct = list(set(words).difference(known))
    encoded = dict(zip(distinct, encode(distinct), strict=True)) | {**known}
    return np.fromiter(chain.from_iterable(map(encoded.__getitem__, words)), np.uint16)


class SubwordTokenizer(characters.Tokenizer):
    """A SentencePiece model (`bpe` or `unigram`) over 256 byte tokens and learned pieces.

    Attributes:
        model: The model in SentencePiece's own format.
    """

    def __init__(self, kind: str, model: bytes):
        self.kind = kind
        self.model = model
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise ValueError(f"no model of SentencePiece: {error}") from error
        pieces = [*map(self._piece, range(self._processor.vocab_size()))]
        super().__init__(pieces, blake2b=_digest(model))
        token_of_byte = {piece: token for token, piece in enumerate(pieces[:257])}
        self._byte_words = {
            character: [token_of_byte[bytes([value])] for value in character.encode()]
            for character in _ALWAYS_BYTES
        }

    def _piece(self, token: int) -> bytes:
        if self._processor.is_unknown(token):
            return b""
        piece: str = self._processor.id_to_piece(token)
        if self._processor.is_byte(token):
            return bytes.fromhex(piece[3:5])  # "<0x0A>"
        return piece.replace("\u2581", " ").encode()

    def scored_pieces(self) -> list[tuple[str, float, str]]:
        """Return every token's piece in SentencePiece, score, and type.

        The type is "unknown", "byte" or "piece".
        """
        model = self._processor
        rows: list[tuple[str, float, str]] = []
        for token in range(self.vocab_size):
            kind = "byte" if model.is_byte(token) else "piece"
            if model.is_unknown(token):
                kind = "unknown"
            rows.append((model.id_to_piece(token), model.get_score(token), kind))
        return rows

    def encode(self, text: str) -> UInt16[np.ndarray, " N"]:
        """Return the token ids of `text`."""
        characters.utf8(text)
        return _encode_by_word(_WORDS.findall(text), self._processor.encode, self._byte_words)

    def save(self, directory: Path) -> None:
        """Write `tokenizer.model`, in SentencePiece's own format, and `tokenizer.json`."""
        write_bytes(directory / "tokenizer.model", self.model)
        super().save(directory)

    @classmethod
    def load(cls, directory: Path, kind: str, digest: str) -> "SubwordTokenizer":
        """Return the saved tokenizer; ValueError if its file is another one."""
        model = read_bytes(directory / "tokenizer.model")
        if _digest(model) != digest:
            raise ValueError(f"tokenizer.model has {len(model)} bytes that were not saved with it")
        return cls(kind, model)

    @classmethod
    def train(cls, kind: str, text: str, vocab_size: int) -> "SubwordTokenizer":
        """Return a model of at most `vocab_size` tokens; fewer when `text` does not hold as many.

        The trainer reads at most `SAMPLE` characters, in evenly spread passages, on one thread: the
        same text gives the same model. If letters would fill more than half of the room that the
        256 bytes leave, the rarest are left to the bytes.
        """
        if not _SMALLEST_VOCABULARY <= vocab_size <= characters.LARGEST_VOCABULARY:
            raise ConfigError(
                f"a vocabulary of {vocab_size} is not possible for the {kind} tokenizer: choose "
                f"{_SMALLEST_VOCABULARY} (256 bytes and some pieces) to "
                f"{characters.LARGEST_VOCABULARY}"
            )
        characters.utf8(text)
        words = _training_words(_sample(text), letters=(vocab_size - 257) // 2)
        if not words:
            raise ConfigError(f"the text holds no word to train the {kind} tokenizer on")
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(words),
            model_writer=model,
            model_type=kind,
            vocab_size=vocab_size,
            hard_vocab_limit=False,
            byte_fallback=True,
            character_coverage=1.0,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=False,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            num_threads=1,
            minloglevel=2,
        )
        return cls(kind, model.getvalue())


def _sample(text: str) -> str:
    """Return a text to train a vocabulary on: all, or of a long text evenly spread passages."""
    if len(text) <= SAMPLE + _PASSAGES:
        return text
    starts = (len(text) * number // _PASSAGES for number in range(_PASSAGES))
    return "\n".join(text[start : start + SAMPLE // _PASSAGES] for start in starts)


def _training_words(text: str, letters: int) -> list[str]:
    """Return the words of `text`, cut at all but the space and its `letters` commonest characters.

    At least one word has a space. SentencePiece writes the space as U+2581; without a piece for it,
    a space would become the bytes of U+2581, and be read back as that character.
    """
    by_frequency = sorted(Counter(text).items(), key=lambda item: (-item[1], item[0]))
    rare = {ord(character): "\n" for character, _ in by_frequency[letters:] if character != " "}
    words = [word for word in _WORDS.findall(text.translate(rare)) if word not in _ALWAYS_BYTES]
    if words and not any(word[0] == " " and word != " " for word in words):
        words.append(f" {words[0].strip(' ') or 'a'}")
    return words


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


END_OF_TEXT = "<|endoftext|>"
"""The one special token of GPT-2, the last of its vocabulary."""
_SPACE = "\t-\r \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000"
_FILE = "tokenizer.bpe"


class GPT2Tokenizer(characters.Tokenizer):
    """Token ids of GPT-2: 256 bytes, one for each merge, and the end of text (50256) last.

    As in the book, `<|endoftext|>` written in a text is the one token. Others who train such a
    tokenizer often have it first, and it moves the ids of all others by one. Two merges that make
    the same piece share its id.

    Attributes:
        merges: One merge a line, the earliest first.
        end: The id of the end of text.
    """

    kind = "gpt2"
    end_of_text = END_OF_TEXT

    def __init__(self, merges: str, end: int | None = None):
        pairs = _pairs(merges)
        single = [bytes([byte]) for byte in bytes_by_symbol().values()]
        pieces = [*dict.fromkeys([*single, *map(b"".join, pairs)])]
        self.merges, self.end = merges, len(pieces) if end is None else end
        if not 0 <= self.end <= len(pieces):
            raise ValueError(f"{END_OF_TEXT} has the id {end}, of {len(pieces) + 1}")
        self._rank = {pair: rank for rank, pair in enumerate(pairs)}
        self._token = {piece: token + (token >= self.end) for token, piece in enumerate(pieces)}
        pieces.insert(self.end, END_OF_TEXT.encode())
        elsewhere = {} if self.end == len(pieces) - 1 else {"end": end}
        super().__init__(pieces, vocab_size=len(pieces), **elsewhere)

    @classmethod
    def published(cls, directory: Path) -> "GPT2Tokenizer":
        """Return the tokenizer of the published models; download its merges to `directory` once."""
        return cls.from_file(downloads.fetch(downloads.GPT2_MERGES, directory))

    @classmethod
    def from_file(cls, path: Path) -> "GPT2Tokenizer":
        """Return the tokenizer of a file of merges, such as `vocab.bpe` or `merges.txt`."""
        try:
            return cls(read_text(path))
        except (RunError, ValueError) as error:
            raise RunError(f"{path}: not a file of GPT-2's merges ({error})") from error

    def encode(self, text: str) -> UInt16[np.ndarray, " N"]:
        """Return the token ids of `text`."""
        characters.utf8(text)
        known = {END_OF_TEXT: [self.end]}
        return _encode_by_word([*_words(text)], lambda words: map(self._merge, words), known)

    def _merge(self, word: str) -> list[int]:
        parts = [bytes([byte]) for byte in word.encode()]
        # Byte-pair encoding: join the adjacent pair that was learned first, until none is left.
        while pairs := self._rank.keys() & itertools.pairwise(parts):
            pair = min(pairs, key=self._rank.__getitem__)
            joined: list[bytes] = []
            for part in parts:
                if joined and (joined[-1], part) == pair:
                    joined[-1] += part
                else:
                    joined.append(part)
            parts = joined
        return [self._token[part] for part in parts]

    def save(self, directory: Path) -> None:
        """Write `tokenizer.bpe`, the merges, and `tokenizer.json`."""
        write_text(directory / _FILE, self.merges)
        super().save(directory)

    @classmethod
    def load(cls, directory: Path, vocab_size: int, end: int | None) -> "GPT2Tokenizer":
        """Return the saved tokenizer; ValueError if its file is another one."""
        tokenizer = cls(read_text(directory / _FILE), end)
        if tokenizer.vocab_size != vocab_size:
            raise ValueError(f"{_FILE} makes {tokenizer.vocab_size} tokens")
        return tokenizer


def _words(text: str) -> Iterator[str]:
    for number, passage in enumerate(text.split(END_OF_TEXT)):
        if number:
            yield END_OF_TEXT
        yield from map(re.Match.group, _pattern().finditer(passage))


@functools.cache
def _pattern() -> re.Pattern[str]:
    r"""Return GPT-2's pattern, with \p{L} and \p{N}, which `re` lacks, from Unicode's table."""
    letter, number = _category("L"), _category("N")
    return re.compile(
        rf"'s|'t|'re|'ve|'m|'ll|'d| ?[{letter}]+| ?[{number}]+| ?[^{_SPACE}{letter}{number}]+"
        rf"|[{_SPACE}]+(?![^{_SPACE}])|[{_SPACE}]+"
    )


def _category(initial: str) -> str:
    """Return the code points of a Unicode general category as the inside of a character class."""
    codes = (code for code in range(0x110000) if unicodedata.category(chr(code))[0] == initial)
    # Code minus its index is constant within a run of adjacent codes.
    runs = itertools.groupby(enumerate(codes), key=lambda item: item[1] - item[0])
    members = ([code for _, code in run] for _, run in runs)
    return "".join(f"\\U{run[0]:08x}-\\U{run[-1]:08x}" for run in members)


def bytes_by_symbol() -> dict[str, int]:
    """Return the letters that the merges write bytes with, in the order of their token ids.

    Bytes that print in Latin-1 keep their character; the others are U+0100 onwards.
    """
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printing]
    shown = [*map(chr, printing), *(chr(0x100 + place) for place in range(len(others)))]
    return dict(zip(shown, printing + others, strict=True))


def merge_lines(merges: str) -> list[str]:
    """Return the lines that hold a merge, in order."""
    return [line for line in merges.split("\n") if line and not line.startswith("#version")]


def _pairs(merges: str) -> list[tuple[bytes, bytes]]:
    """Return the merges, in order; raises ValueError where a line is not two symbols."""
    byte_of = bytes_by_symbol()
    pairs: list[tuple[bytes, bytes]] = []
    for line in merge_lines(merges):
        try:
            left, right = (bytes(map(byte_of.__getitem__, half)) for half in line.split(" "))
        except (KeyError, ValueError) as error:
            raise ValueError(f"{line!r} is not two symbols") from error
        pairs.append((left, right))
    if not pairs:
        raise ValueError("there is no merge")
    return pairs
