"""`tokenizer.json` read by a small reading of its format: the ids are ours."""

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from mlx_attn.interop.tokenizer_json import read_tokenizer, tokenizer_json
from mlx_attn.text.subwords import bytes_by_symbol

from .conftest import TEXT

TEXTS = (
    "the  quick   fox",
    " the fox ",
    "\n\nIt\n jumps\n",
    "fox \U0001f600 dog, naïve ones, Übung",
    "13 dogs, isn't it?",
    "a\0b\tc",
)
_LETTERS = {byte: symbol for symbol, byte in bytes_by_symbol().items()}


def pieces(rule: dict[str, Any], text: str) -> Iterator[str]:
    """A pre-tokenizer of the kinds that we write."""
    match rule["type"]:
        case "Split":
            yield from re.findall(rule["pattern"]["Regex"], text)
        case "ByteLevel":
            pattern = r"'(?:[sdmt]|ll|ve|re)| ?[^\W\d_]+| ?\d+| ?[^\s\w]+|\s+(?!\S)|\s+"
            words = re.findall(pattern, text) if rule["use_regex"] else [text]
            yield from ("".join(_LETTERS[byte] for byte in word.encode()) for word in words)
        case "Metaspace":
            yield text.replace(" ", rule["replacement"])
        case "Sequence":
            first, second = rule["pretokenizers"]
            for piece in pieces(first, text):
                yield from pieces(second, piece)


def merged(model: dict[str, Any], word: str) -> list[str]:
    """Byte-pair encoding: the earliest merge first, from left to right."""
    rank = {tuple(pair): n for n, pair in enumerate(model["merges"])}
    parts = [*word]
    while known := [(rank[p], i) for i, p in enumerate(pairwise(parts)) if p in rank]:
        i = min(known)[1]
        parts[i : i + 2] = ["".join(parts[i : i + 2])]
    return parts


def likeliest(model: dict[str, Any], word: str) -> list[str]:
    """The unigram model's segmentation; a letter that is unknown costs much."""
    scores = dict(map(tuple, model["vocab"]))
    best: list[tuple[float, list[str]]] = [(0.0, [])]
    for end in range(1, len(word) + 1):
        starts = [(best[i], word[i:end]) for i in range(end)]
        known = [(s + scores[p], [*ps, p]) for (s, ps), p in starts if p in scores]
        before, parts = best[end - 1]
        best.append(max([*known, (before - 1e3, [*parts, word[end - 1]])], key=lambda b: b[0]))
    return best[-1][1]


def encode(content: dict[str, Any], text: str) -> list[int]:
    """The ids of a text by the file alone."""
    model = content["model"]
    vocab = model["vocab"]
    if model["type"] == "Unigram":
        vocab = {piece: token for token, (piece, _) in enumerate(vocab)}
    cut = {"WordLevel": lambda m, w: [w], "BPE": merged, "Unigram": likeliest}[model["type"]]
    ids: list[int] = []
    for word in pieces(content["pre_tokenizer"], text):
        for part in cut(model, word):
            spelled = [part] if part in vocab else [f"<0x{b:02X}>" for b in part.encode()]
            ids += [vocab[piece] for piece in spelled]
    return ids


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", ["byte", "bpe", "unigram", "gpt2"])
def test_the_ids_of_any_text_are_ours(kind, text, tokenizers):
    tokenizer = tokenizers[kind]
    assert encode(tokenizer_json(tokenizer), text) == tokenizer.encode(text).tolist()


def test_the_ids_of_characters_are_ours(tokenizers):
    text, tokenizer = TEXT[:300], tokenizers["char"]
    assert encode(tokenizer_json(tokenizer), text) == tokenizer.encode(text).tolist()


def test_bytes_are_read_from_the_file_again(tokenizers, tmp_path):
    content = tokenizer_json(tokenizers["byte"])
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    found = read_tokenizer(tmp_path)
    assert found is not None
    assert found.encode(TEXT).tolist() == tokenizers["byte"].encode(TEXT).tolist()
