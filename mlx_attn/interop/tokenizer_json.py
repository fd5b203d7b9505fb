"""Write tokenizers as `tokenizer.json` of the `tokenizers` library, for mlx-lm and transformers.

Each kind of tokenizer maps to a model of the library that gives the same ids. The file also holds
how text is split before and joined afterwards. GGUF stores the same vocabularies in its own form.
"""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import sentencepiece

from mlx_attn.text.subwords import (
    END_OF_TEXT,
    GPT2Tokenizer,
    SubwordTokenizer,
    bytes_by_symbol,
)
from mlx_attn.text.tokenizers import Tokenizer

OWN = "mlx_attn"
"""The subfolder of an export with the tokenizer in the format of a run."""

_Json = dict[str, Any]

_UNDERLINE = "\u2581"
_SPACE_AND_WORD = r"[\n\x00]| ?[^ \n\x00]{1,1000}| "
"""Splits a text into words for SentencePiece; the same pattern as `mlx_attn.text.subwords`."""

_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
"""Types of tokens in GGUF."""


def tokenizer_files(tokenizer: Tokenizer, context_length: int) -> dict[str, _Json]:
    """Return the contents of `tokenizer.json` and `tokenizer_config.json`.

    Without `tokenizer_class`, transformers builds the class of the model's type, which ignores
    `tokenizer.json`.
    """
    end = {"eos_token": END_OF_TEXT} if tokenizer.kind == "gpt2" else {}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context_length,
        "clean_up_tokenization_spaces": False,
        **end,
    }
    return {"tokenizer.json": tokenizer_json(tokenizer), "tokenizer_config.json": config}


def tokenizer_json(tokenizer: Tokenizer) -> _Json:
    """Return a tokenizer in the library's format."""
    base = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": []}
    return {**base, "post_processor": None, "normalizer": None, **_FORMS[tokenizer.kind](tokenizer)}


def _split(pattern: str) -> _Json:
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }


def _words(tokenizer: Tokenizer, pattern: str) -> _Json:
    """Return a vocabulary of whole words: each piece that the pattern matches is a token."""
    words = {piece.decode(): token for token, piece in enumerate(tokenizer.vocabulary)}
    return {
        "model": {"type": "WordLevel", "vocab": words, "unk_token": ""},
        "pre_tokenizer": _split(pattern),
        "decoder": {"type": "Fuse"},
    }


def _byte_level(vocab: Mapping[str, int], merges: list[list[str]], use_regex: bool) -> _Json:
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "model": {"type": "BPE", "vocab": vocab, "merges": merges, "fuse_unk": False},
        "pre_tokenizer": {**level, "use_regex": use_regex},
        "decoder": {**level, "use_regex": use_regex},
    }


def _bytes(tokenizer: Tokenizer) -> _Json:
    return _byte_level(bytes_by_symbol(), [], use_regex=False)


def _gpt2(tokenizer: Tokenizer) -> _Json:
    assert isinstance(tokenizer, GPT2Tokenizer)
    tokens = written_tokens(tokenizer)
    merges = [line.split(" ") for line in _merge_lines(tokenizer)]
    end = {"id": tokenizer.end, "content": END_OF_TEXT, "special": True, "normalized": False}
    end |= {"single_word": False, "lstrip": False, "rstrip": False}
    form = _byte_level({token: i for i, token in enumerate(tokens)}, merges, use_regex=True)
    return {**form, "added_tokens": [end]}


def _merge_lines(tokenizer: GPT2Tokenizer) -> list[str]:
    lines = tokenizer.merges.split("\n")
    return [line for line in lines if line and not line.startswith("#version")]


def written_tokens(tokenizer: Tokenizer) -> list[str]:
    """Return the tokens as GPT-2 writes them, a letter for each byte; the end of text unchanged."""
    letter = {byte: symbol for symbol, byte in bytes_by_symbol().items()}
    written = ["".join(map(letter.__getitem__, piece)) for piece in tokenizer.vocabulary]
    if isinstance(tokenizer, GPT2Tokenizer):
        written[tokenizer.end] = END_OF_TEXT
    return written


def sentencepiece_tokens(tokenizer: Tokenizer) -> list[tuple[str, float, int]]:
    """Return piece, score and GGUF's type of every token of a SentencePiece model."""
    assert isinstance(tokenizer, SubwordTokenizer)
    model = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    rows = []
    for token in range(model.vocab_size()):
        kind = _UNKNOWN if model.is_unknown(token) else _BYTE if model.is_byte(token) else _NORMAL
        rows.append((model.id_to_piece(token), model.get_score(token), kind))
    return rows


def _pieces(tokenizer: Tokenizer) -> _Json:
    """Return a SentencePiece model: pieces with scores, or merges ordered by their result's score.

    Every split of a piece into two pieces is a merge, as in the library's own converter.
    """
    rows = sentencepiece_tokens(tokenizer)
    ids = {piece: token for token, (piece, _, _) in enumerate(rows)}
    if tokenizer.kind == "unigram":
        # No word continues after a newline, so no text spells the unknown token.
        pairs = [["\n" + rows[0][0], rows[0][1]], *([p, score] for p, score, _ in rows[1:])]
        model = {"type": "Unigram", "unk_id": 0, "vocab": pairs, "byte_fallback": True}
    else:
        merges = [list(cut) for _, cut in sorted(_cuts(rows, ids), key=lambda pair: pair[0])]
        model = {"type": "BPE", "vocab": ids, "merges": merges, "unk_token": rows[0][0]}
        model |= {"byte_fallback": True, "fuse_unk": True}
    underlined = {"type": "Metaspace", "replacement": _UNDERLINE, "prepend_scheme": "never"}
    replace = {"type": "Replace", "pattern": {"String": _UNDERLINE}, "content": " "}
    cut = {"type": "Sequence", "pretokenizers": [_split(_SPACE_AND_WORD)]}
    cut["pretokenizers"].append({**underlined, "split": False})
    join = {"type": "Sequence", "decoders": [replace, {"type": "ByteFallback"}, {"type": "Fuse"}]}
    return {"model": model, "pre_tokenizer": cut, "decoder": join}


def _cuts(
    rows: list[tuple[str, float, int]], ids: Mapping[str, int]
) -> "itertools.chain[tuple[tuple[float, int, int], tuple[str, str]]]":
    def of_piece(piece: str, score: float):
        cuts = ((piece[:n], piece[n:]) for n in range(1, len(piece)))
        merges = [cut for cut in cuts if cut[0] in ids and cut[1] in ids]
        return [((-score, ids[left], ids[right]), (left, right)) for left, right in merges]

    return itertools.chain.from_iterable(
        of_piece(piece, score) for piece, score, kind in rows if kind == _NORMAL
    )


_FORMS: dict[str, Callable[[Tokenizer], _Json]] = {
    "char": lambda tokenizer: _words(tokenizer, r"[\s\S]"),
    "byte": _bytes,
    "bpe": _pieces,
    "unigram": _pieces,
    "gpt2": _gpt2,
    "symbols": lambda tokenizer: _words(tokenizer, r"\n| \S+"),
}

NOTES = {
    "char": "Characters that the training text did not hold cannot be read.",
    "bpe": "A text that holds U+2581 itself does not come back; all others do.",
    "unigram": "A text that holds U+2581, or byte tokens spelled out such as <0x41>, is read "
    "otherwise than here; all others have the same ids.",
    "symbols": "A text begins with a newline, and one space stands before every symbol.",
}
"""Limits of each kind, for the model card."""


def gguf_tokenizer(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the vocabulary by llama.cpp's GGUF keys; lists have one entry per token."""
    key = "tokenizer.ggml."
    if tokenizer.kind in ("bpe", "unigram"):
        pieces, scores, types = map(list, zip(*sentencepiece_tokens(tokenizer), strict=True))
        model = "llama" if tokenizer.kind == "bpe" else "t5"
        facts = {"model": model, "scores": scores, "unknown_token_id": 0, "add_space_prefix": False}
        facts["remove_extra_whitespaces"] = False
        return {key + k: v for k, v in {**facts, "tokens": pieces, "token_type": types}.items()}
    tokens = written_tokens(tokenizer)
    facts = {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "merges": [""]}
    types = [_NORMAL] * len(tokens)
    if isinstance(tokenizer, GPT2Tokenizer):
        end = tokenizer.end
        types[end] = _CONTROL
        facts |= {"merges": _merge_lines(tokenizer), "eos_token_id": end, "bos_token_id": end}
    return {key + k: v for k, v in {**facts, "token_type": types, "add_bos_token": False}.items()}
