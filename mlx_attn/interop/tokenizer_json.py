"""Write and read tokenizers as `tokenizer.json` of the `tokenizers` library, as other programs do.

Writing: each kind of tokenizer maps to a model of the library that gives the same ids. The file
also holds how text is split before and joined afterwards.

Reading: only GPT-2's byte-level BPE is accepted. A tokenizer of Hugging Face is a chain of steps.
With a step that GPT-2 lacks, a text would get different ids there and here, and the model would
read different words. So the ids come from the file, and any additional step is refused by name.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mlx_attn.errors import RunError
from mlx_attn.records import read_record, read_text
from mlx_attn.text.characters import ByteTokenizer
from mlx_attn.text.subwords import (
    END_OF_TEXT,
    GPT2Tokenizer,
    SubwordTokenizer,
    bytes_by_symbol,
    merge_lines,
)
from mlx_attn.text.tokenizers import Tokenizer, load_tokenizer

OWN = "mlx_attn"
"""The subfolder of an export with the tokenizer in the format of a run."""

_Json = dict[str, Any]

_UNDERLINE = "\u2581"
_SPACE_AND_WORD = r"[\n\x00]| ?[^ \n\x00]{1,1000}| "
"""Splits a text into words for SentencePiece; the same pattern as `mlx_attn.text.subwords`."""


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
    match tokenizer.kind:
        case "char":
            form = _words(tokenizer, r"[\s\S]")
        case "symbols":
            form = _words(tokenizer, r"\n| \S+")
        case "byte":
            form = _byte_level(bytes_by_symbol(), [], use_regex=False)
        case "gpt2":
            form = _gpt2(tokenizer)
        case _:
            form = _pieces(tokenizer)
    base = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": []}
    return {**base, "post_processor": None, "normalizer": None, **form}


def _split(pattern: str) -> _Json:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


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


def _gpt2(tokenizer: Tokenizer) -> _Json:
    assert isinstance(tokenizer, GPT2Tokenizer)
    tokens = written_tokens(tokenizer)
    merges = [line.split(" ") for line in merge_lines(tokenizer.merges)]
    end = {"id": tokenizer.end, "content": END_OF_TEXT, "special": True}
    end |= dict.fromkeys(("normalized", "single_word", "lstrip", "rstrip"), False)
    form = _byte_level({token: i for i, token in enumerate(tokens)}, merges, use_regex=True)
    return {**form, "added_tokens": [end]}


def written_tokens(tokenizer: Tokenizer) -> list[str]:
    """Return the tokens as GPT-2 writes them, a letter for each byte; the end of text unchanged."""
    letter = {byte: symbol for symbol, byte in bytes_by_symbol().items()}
    written = ["".join(map(letter.__getitem__, piece)) for piece in tokenizer.vocabulary]
    if isinstance(tokenizer, GPT2Tokenizer):
        written[tokenizer.end] = END_OF_TEXT
    return written


def _pieces(tokenizer: Tokenizer) -> _Json:
    """Return a SentencePiece model: pieces with scores, or merges ordered by their result's score.

    Every split of a piece into two pieces is a merge, as in the library's own converter.
    """
    assert isinstance(tokenizer, SubwordTokenizer)
    rows = tokenizer.scored_pieces()
    ids = {piece: token for token, (piece, _, _) in enumerate(rows)}
    if tokenizer.kind == "unigram":
        # No word continues after a newline, so no text spells the unknown token.
        pairs = [["\n" + rows[0][0], rows[0][1]], *([p, score] for p, score, _ in rows[1:])]
        model = {"type": "Unigram", "unk_id": 0, "vocab": pairs, "byte_fallback": True}
    else:
        cuts = [
            (-score, ids[piece[:n]], ids[piece[n:]], [piece[:n], piece[n:]])
            for piece, score, kind in rows
            for n in range(1, len(piece))
            if kind == "piece" and piece[:n] in ids and piece[n:] in ids
        ]
        merges = [pair for *_, pair in sorted(cuts)]
        model = {"type": "BPE", "vocab": ids, "merges": merges, "unk_token": rows[0][0]}
        model |= {"byte_fallback": True, "fuse_unk": True}
    underlined = {"type": "Metaspace", "replacement": _UNDERLINE, "prepend_scheme": "never"}
    replace = {"type": "Replace", "pattern": {"String": _UNDERLINE}, "content": " "}
    cut = {"type": "Sequence", "pretokenizers": [_split(_SPACE_AND_WORD)]}
    cut["pretokenizers"].append({**underlined, "split": False})
    join = {"type": "Sequence", "decoders": [replace, {"type": "ByteFallback"}, {"type": "Fuse"}]}
    return {"model": model, "pre_tokenizer": cut, "decoder": join}


NOTES = {
    "char": ["Characters that the training text did not hold cannot be read."],
    "bpe": ["A text that holds U+2581 itself does not come back; all others do."],
    "unigram": [
        "A text that holds U+2581, or byte tokens spelled out such as <0x41>, is read otherwise "
        "than here; all others have the same ids."
    ],
    "symbols": ["A text begins with a newline, and one space stands before every symbol."],
}
"""Limits of each kind, for the model card."""


# Reading.

_REMOVE = "remove it there if your texts do without it"
_OTHER = "give --tokenizer with one that has the ids of the model"


def read_tokenizer(folder: Path) -> Tokenizer | None:
    """Return the tokenizer of a run, an export or a Hugging Face folder; None without files.

    Raises:
        RunError: A file is damaged, or the tokenizer is not a byte-level BPE like GPT-2's.
    """
    for place in (folder / OWN, folder):
        path = place / "tokenizer.json"
        if path.is_file() and "kind" in read_record(path):
            return load_tokenizer(place)
    files = ("tokenizer.json", "merges.txt", "vocab.json", "tokenizer_config.json")
    path, merges, vocabulary, settings = (folder / name for name in files)
    if path.is_file():
        tokenizer = _of_json(path)
    elif vocabulary.is_file() and merges.is_file():
        ids = read_record(vocabulary, dict[str, int])
        tokenizer = _of_merges(vocabulary, read_text(merges), ids)
    elif merges.is_file():
        tokenizer = GPT2Tokenizer.from_file(merges)
    else:
        return None
    config = read_record(settings) if settings.is_file() else {}
    for key in ("add_prefix_space", "add_bos_token"):
        if config.get(key):
            raise _refusal(settings, f"{key}=true", _REMOVE)
    return tokenizer


def _of_json(path: Path) -> Tokenizer:
    content = read_record(path)
    try:
        for difference, way_out in _differences(content):
            raise _refusal(path, difference, way_out)
        model = content["model"]
        merges = "\n".join(
            pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]
        )
        added = {token["content"]: token["id"] for token in content.get("added_tokens", [])}
        return _of_merges(path, merges, {**model["vocab"], **added})
    except (TypeError, AttributeError, LookupError) as error:
        raise RunError(f"{path}: damaged ({error!r})") from error


def _refusal(path: Path, difference: str, way_out: str) -> RunError:
    return RunError(
        f"{path}: {difference}, which GPT-2's tokenizer does not have: here texts would get other "
        f"ids than the model has learned; {way_out}"
    )


_MODEL_OPTIONS = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")


def _differences(content: _Json) -> Iterator[tuple[str, str]]:
    """Yield the features that GPT-2's tokenizer lacks, each with the way out."""
    model = content["model"]
    if model["type"] != "BPE":
        yield f"its model is {model['type']} and not BPE", _OTHER
    for key in (*_MODEL_OPTIONS, "ignore_merges"):
        if value := model.get(key):
            yield f"its BPE has {key}={json.dumps(value)}", _OTHER
    for token in content.get("added_tokens", []):
        if token["content"] != END_OF_TEXT:
            yield f"it has the added token {token['content']!r}", _OTHER
        if token.get("single_word") or token.get("lstrip") or token.get("rstrip"):
            yield f"its {END_OF_TEXT} takes the spaces around it, or asks for them", _OTHER
    yield from _differing_steps(content)


def _differing_steps(content: _Json) -> Iterator[tuple[str, str]]:
    for step in _flat(content.get("normalizer")):
        yield f"it has the normalizer {step['type']}", _REMOVE
    splitting = _flat(content.get("pre_tokenizer"))
    if [step["type"] for step in splitting] != ["ByteLevel"]:
        names = ", ".join(step["type"] for step in splitting)
        yield f"its pre-tokenizer is {names or 'missing'} and not ByteLevel", _OTHER
    elif splitting[0].get("add_prefix_space", True):
        yield "its ByteLevel has add_prefix_space=true, a space before every text", _OTHER
    elif content["model"]["merges"] and not splitting[0].get("use_regex", True):
        yield "its ByteLevel has use_regex=false, so that tokens span words", _OTHER
    for step in _flat(content.get("post_processor")):
        if added := [
            part["SpecialToken"] for part in step.get("single", []) if "SpecialToken" in part
        ]:
            yield f"its template adds {added[0]['id']!r} to every text", _REMOVE
        elif step["type"] not in ("ByteLevel", "TemplateProcessing"):
            yield f"it has the post-processor {step['type']}", _REMOVE


def _flat(step: _Json | None) -> list[_Json]:
    """Return a normalizer, a pre-tokenizer or a post-processor as a list of steps."""
    if step is None:
        return []
    if step["type"] != "Sequence":
        return [step]
    keys = ("normalizers", "pretokenizers", "processors")
    return [each for key in keys for part in step.get(key, []) for each in _flat(part)]


def _of_merges(path: Path, merges: str, ids: Mapping[str, int]) -> Tokenizer:
    """Return the tokenizer with these merges, and refuse ids that GPT-2's rules do not give."""
    if merges and END_OF_TEXT not in ids:
        raise RunError(f"{path}: it has no {END_OF_TEXT}, the end of text of GPT-2; {_OTHER}")
    try:
        tokenizer = GPT2Tokenizer(merges, ids[END_OF_TEXT]) if merges else ByteTokenizer()
    except ValueError as error:
        raise RunError(f"{path}: not the merges of a byte-level BPE ({error})") from error
    ours = written_tokens(tokenizer)
    if missing := [token for token in ours if token not in ids]:
        lack = f"{len(missing):,} of {len(ours):,} bytes and merges, such as {missing[0]!r}"
        raise RunError(f"{path}: it lacks {lack}, so that some texts have no ids; {_OTHER}")
    for token, number in sorted(ids.items(), key=lambda item: item[1]):
        if number >= len(ours) or ours[number] != token:
            raise _refusal(path, f"it has {token!r} as the id {number}", _OTHER)
    return tokenizer
