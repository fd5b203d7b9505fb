"""Write tokenizers as `tokenizer.json` of the `tokenizers` library, as other programs do.

Each kind of tokenizer maps to a model of the library that gives the same ids. The file also holds
how text is split before and joined afterwards.
"""

import json
from typing import Any

from mlx_attn.text.foreign import ForeignTokenizer, bytes_by_symbol, merges_of
from mlx_attn.text.subwords import SubwordTokenizer
from mlx_attn.text.tokenizers import Tokenizer

OWN = "mlx_attn"
"""The subfolder of an export with the tokenizer in the format of a run."""

_Json = dict[str, Any]

_UNDERLINE = "\u2581"
_SPACE_AND_WORD = r"[\n\x00]| ?[^ \n\x00]{1,1000}| "
"""Splits a text into words for SentencePiece; the same pattern as `mlx_attn.text.subwords`."""

_REPLACE = {"type": "Replace", "pattern": {"String": _UNDERLINE}, "content": " "}
_JOIN = {"type": "Sequence", "decoders": [_REPLACE, {"type": "ByteFallback"}, {"type": "Fuse"}]}
"""Joins tokens as SentencePiece does: mlx-lm tries any other decoder on letters of its own."""

_NUL = {"byte": "\u0100", "bpe": "<0x00>", "unigram": "<0x00>"}
"""The token of the byte 0, which ends a text where no other does: mlx_lm.lora needs one."""


def tokenizer_files(tokenizer: Tokenizer, context_length: int) -> dict[str, str]:
    """Return the texts of `tokenizer.json` and `tokenizer_config.json`.

    Without `tokenizer_class`, transformers builds the class of the model's type, which ignores
    `tokenizer.json`.
    """
    end = tokenizer.end_of_text or _NUL.get(tokenizer.kind, "")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context_length,
        "clean_up_tokenization_spaces": False,
        **({"eos_token": end} if end else {}),
        # In a text, the letters of our own end token are letters.
        "split_special_tokens": not tokenizer.end_of_text,
    }
    return {"tokenizer.json": tokenizer_json(tokenizer), "tokenizer_config.json": as_json(config)}


def as_json(content: _Json) -> str:
    """Return the text of a file."""
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def tokenizer_json(tokenizer: Tokenizer) -> str:
    """Return a tokenizer in the library's format."""
    if isinstance(tokenizer, ForeignTokenizer):
        return tokenizer.content
    match tokenizer.kind:
        case "char":
            form = _words(tokenizer, r"[\s\S]")
        case "symbols":
            form = _words(tokenizer, r"\n| \S+")
        case "byte":
            form = _bytes()
        case _:
            form = _pieces(tokenizer)
    base = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": []}
    return as_json({**base, "post_processor": None, "normalizer": None, **form})


def _split(pattern: str) -> _Json:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _words(tokenizer: Tokenizer, pattern: str) -> _Json:
    """Return a vocabulary of whole words: each piece that the pattern matches is a token."""
    words = {piece.decode(): token for token, piece in enumerate(tokenizer.vocabulary)}
    newline = {**_REPLACE, "pattern": {"String": "\n"}, "content": ""}  # mlx_lm.generate reads one
    return {
        "model": {"type": "WordLevel", "vocab": words, "unk_token": ""},
        "pre_tokenizer": _split(pattern),
        "decoder": _JOIN,
        "normalizer": None if "\n" in words else newline,
    }


def _bytes() -> _Json:
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    level["use_regex"] = False
    model = {"type": "BPE", "vocab": bytes_by_symbol(), "merges": [], "fuse_unk": False}
    return {"model": model, "pre_tokenizer": level, "decoder": level}


def _pieces(tokenizer: Tokenizer) -> _Json:
    """Return a SentencePiece model: pieces with scores, or merges, the earliest piece's first."""
    assert isinstance(tokenizer, SubwordTokenizer)
    rows = tokenizer.scored_pieces()
    if tokenizer.kind == "unigram":
        # No word continues after a newline, so no text spells the unknown token.
        pairs = [["\n" + rows[0][0], rows[0][1]], *([p, score] for p, score, _ in rows[1:])]
        model = {"type": "Unigram", "unk_id": 0, "vocab": pairs, "byte_fallback": True}
    else:
        ids = {piece: token for token, (piece, _, _) in enumerate(rows)}
        merges = merges_of({piece: ids[piece] for piece, _, kind in rows if kind == "piece"})
        model = {"type": "BPE", "vocab": ids, "merges": merges, "unk_token": rows[0][0]}
        model |= {"byte_fallback": True, "fuse_unk": True}
    underlined = {"type": "Metaspace", "replacement": _UNDERLINE, "prepend_scheme": "never"}
    cut = {"type": "Sequence", "pretokenizers": [_split(_SPACE_AND_WORD)]}
    cut["pretokenizers"].append({**underlined, "split": False})
    return {"model": model, "pre_tokenizer": cut, "decoder": _JOIN}


NOTES = {
    "char": [
        "Of what the training text did not hold, newlines are left out and other characters "
        "cannot be read. U+2581 is written as a space."
    ],
    "bpe": ["A text that holds U+2581 itself does not come back; all others do."],
    "unigram": [
        "A text that holds U+2581, or byte tokens spelled out such as <0x41>, is read otherwise "
        "than here; all others have the same ids."
    ],
    "symbols": ["A text begins with a newline, and one space stands before every symbol."],
}
"""Limits of each kind, for the model card."""
