"""Tokenizers of subwords: SentencePiece, made lossless.

Kudo and Richardson, "SentencePiece: A simple and language independent subword tokenizer and
detokenizer for Neural Text Processing", 2018 (arXiv 1808.06226); the unigram model: Kudo, "Subword
Regularization", 2018 (arXiv 1804.10959).

SentencePiece writes a space as U+2581, so that a text with that character in it does not come back,
and it stops at NUL. Here a text is cut into words first; U+2581, NUL and the newline become byte
tokens, and each distinct word is encoded once. No piece holds a space but at its start, so cutting
before every space changes nothing in the result, and encoding is as fast as a dictionary.
"""

import io
import re
from collections import Counter
from itertools import chain
from pathlib import Path

import numpy as np
import sentencepiece
from jaxtyping import UInt16

from mlx_attn import files
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.records import read_bytes
from mlx_attn.text import characters

_SMALLEST_VOCABULARY = 320  # 256 bytes, the unknown token, and room for letters and pieces
SAMPLE = 4_000_000  # characters of text that a vocabulary is trained on, at most
_PASSAGES = 64  # of the sample
_ALWAYS_BYTES = "\n\0\u2581"
# A space belongs to the word that follows it. SentencePiece's trainer breaks on huge words.
_WORDS = re.compile(rf"[{_ALWAYS_BYTES}]| ?[^ {_ALWAYS_BYTES}]{{1,1000}}| ")


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
        rows = self.scored_pieces()
        super().__init__([*map(_bytes_of, rows)], blake2b=files.digest(model))
        token_of_byte = {_bytes_of(row): t for t, row in enumerate(rows) if row[2] == "byte"}
        if len(token_of_byte) < 256:
            raise ValueError("it has no bytes to fall back on: train it with --byte_fallback")
        self._byte_words = {
            character: [token_of_byte[bytes([value])] for value in character.encode()]
            for character in _ALWAYS_BYTES
        }

    def scored_pieces(self) -> list[tuple[str, float, str]]:
        """Return every token's piece in SentencePiece, score, and "unknown", "byte" or "piece"."""
        model, tokens = self._processor, [*range(self._processor.vocab_size())]
        tests = (model.is_unknown(tokens), model.is_control(tokens), model.is_byte(tokens))
        kinds = [
            "unknown" if is_unknown or is_control else "byte" if is_byte else "piece"
            for is_unknown, is_control, is_byte in zip(*tests, strict=True)
        ]
        return [*zip(model.id_to_piece(tokens), model.get_score(tokens), kinds, strict=True)]

    def _encoded(self, text: str) -> UInt16[np.ndarray, " N"]:
        words = _WORDS.findall(text)
        distinct = [*set(words).difference(self._byte_words)]
        encoded = zip(distinct, self._processor.encode(distinct), strict=True)
        ids = dict(encoded) | self._byte_words
        return np.fromiter(chain.from_iterable(map(ids.__getitem__, words)), np.uint16)

    def save(self, directory: Path) -> None:
        """Write `tokenizer.model`, in SentencePiece's own format, and `tokenizer.json`."""
        files.write_bytes(directory / "tokenizer.model", self.model)
        super().save(directory)

    @classmethod
    def load(cls, directory: Path, kind: str, digest: str) -> "SubwordTokenizer":
        """Return the saved tokenizer; ValueError if its file is another one."""
        model = read_bytes(directory / "tokenizer.model")
        if files.digest(model) != digest:
            raise ValueError(f"tokenizer.model has {len(model)} bytes that were not saved with it")
        return cls(kind, model)

    @classmethod
    def read(cls, path: Path) -> "SubwordTokenizer":
        """Return the model in another program's file, without the space that it puts before a text.

        Raises:
            RunError: It is not such a model, or it changes texts.
        """
        # A further `normalizer_spec` (field 3) is merged by protobuf: add_dummy_prefix = False.
        model = read_bytes(path) + b"\x1a\x02\x18\x00"
        try:
            tokenizer = cls("bpe", model)
            # The scores of merges are -0, -1, -2, ..., those of a unigram model logarithms.
            if any(score != round(score) for _, score, _ in tokenizer.scored_pieces()):
                tokenizer.kind = "unigram"
            text = characters.PROBE + "e\u0301"  # a letter and its accent, which nfkc joins
            if tokenizer.decode(tokenizer.encode(text)) != text:
                raise ValueError(
                    "a text does not come back from its tokens: train it with "
                    "--normalization_rule_name=identity --remove_extra_whitespaces=false"
                )
            if any("\u2581" in piece[1:] for piece, _, _ in tokenizer.scored_pieces()):
                raise ValueError("it has pieces with a space within")
        except (ValueError, IndexError) as error:
            raise RunError(f"{path}: not a tokenizer that can be used here ({error})") from error
        return tokenizer

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


def _bytes_of(row: tuple[str, float, str]) -> bytes:
    piece, _, kind = row
    if kind == "byte":
        return bytes.fromhex(piece[3:5])  # "<0x0A>"
    return b"" if kind == "unknown" else piece.replace("\u2581", " ").encode()


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
