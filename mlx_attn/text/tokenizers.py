"""Tokenizers: text to token ids and exactly back.

    char      one token a character of the training text, sorted (as in nanoGPT)
    byte      one token a byte of UTF-8; needs no training and reads any text
    bpe       SentencePiece byte-pair encoding, falling back on bytes
    unigram   SentencePiece unigram language model, falling back on bytes
    gpt2      the byte-level BPE of GPT-2, with its published merges, by the `tokenizers` library

Every kind is lossless: `decode(encode(text)) == text`. Only `char`, and another program's, can
refuse a text. A probing task brings its own, `symbols`, which reads only the task's words. The
bytes of the tokens, concatenated, are the text's UTF-8, so that a stream of tokens is shown with
`codecs.getincrementaldecoder("utf-8")("replace")` and never splits a character.
"""

from pathlib import Path
from typing import Literal

import msgspec

from mlx_attn.errors import ConfigError, RunError
from mlx_attn.records import read_record
from mlx_attn.text import characters, downloads, foreign, subwords
from mlx_attn.text.characters import Tokenizer

KINDS = ("char", "byte", "bpe", "unigram", "gpt2")
TRAINED = ("bpe", "unigram")  # the kinds that a vocabulary size is chosen for


class _Saved(msgspec.Struct):
    """The content of `tokenizer.json`: the kind, and the settings of that kind."""

    kind: Literal["char", "byte", "bpe", "unigram", "symbols"]
    characters: str = ""
    symbols: list[str] = []
    blake2b: str = ""


def train_tokenizer(
    kind: str, text: str, vocab_size: int = 512, directory: Path | None = None
) -> Tokenizer:
    """Return a tokenizer of a kind in `KINDS`, with a vocabulary from `text`.

    `char` needs the whole text; `bpe` and `unigram` use at most `vocab_size` tokens, of a short
    text fewer; `gpt2` keeps its merges in `directory`, by default `downloads.data_directory()`.
    """
    match kind:
        case "char":
            return characters.CharacterTokenizer.train(text)
        case "byte":
            return characters.ByteTokenizer()
        case "bpe" | "unigram":
            return subwords.SubwordTokenizer.train(kind, text, vocab_size)
        case "gpt2":
            folder = directory or downloads.data_directory()
            return foreign.read_foreign(downloads.fetch(downloads.GPT2_MERGES, folder))
        case _:
            raise ConfigError(
                f"unknown tokenizer {kind!r}: choose from {', '.join(KINDS)}, or name what is "
                "there: a run's directory, another program's folder, or its tokenizer.json, "
                "merges, .tiktoken or SentencePiece .model"
            )


def load_tokenizer(directory: Path) -> Tokenizer:
    """Return the tokenizer of a run's directory, or of another program's folder or file."""
    path = directory / "tokenizer.json"
    if directory.suffix == ".model" and directory.is_file():
        return subwords.SubwordTokenizer.read(directory)
    if not path.exists() or "kind" not in read_record(path):
        return foreign.read_foreign(directory)
    saved = read_record(path, _Saved)
    try:
        match saved.kind:
            case "char":
                return characters.CharacterTokenizer(saved.characters)
            case "byte":
                return characters.ByteTokenizer()
            case "symbols":
                return characters.SymbolTokenizer(saved.symbols)
            case kind:
                return subwords.SubwordTokenizer.load(directory, kind, saved.blake2b)
    except (ValueError, KeyError) as error:
        raise RunError(f"{path}: the tokenizer is damaged ({error}); make it again") from error
