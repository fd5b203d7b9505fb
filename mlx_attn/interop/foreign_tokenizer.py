"""Read the tokenizer of a folder from another program: only GPT-2's byte-level BPE is accepted.

A tokenizer of Hugging Face is a chain of steps. With a step that GPT-2 lacks, a text would get
different ids there and here, and the model would read different words. So the ids come from the
file, and any additional step is refused by name.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from mlx_attn.errors import RunError
from mlx_attn.interop.tokenizer_json import OWN, written_tokens
from mlx_attn.records import read_record, read_text
from mlx_attn.text.characters import ByteTokenizer
from mlx_attn.text.subwords import END_OF_TEXT, GPT2Tokenizer
from mlx_attn.text.tokenizers import Tokenizer, load_tokenizer

_REMOVE = "remove it there if your texts do without it"
_OTHER = "give --tokenizer with one that has the ids of the model"


class _Model(msgspec.Struct):
    type: str = ""
    vocab: Any = None
    merges: list[str | list[str]] = []
    dropout: float | None = None
    continuing_subword_prefix: str | None = None
    end_of_word_suffix: str | None = None
    byte_fallback: bool = False
    ignore_merges: bool = False


class _AddedToken(msgspec.Struct):
    id: int
    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False


class _Step(msgspec.Struct):
    """A normalizer, a pre-tokenizer or a post-processor; a "Sequence" holds several."""

    type: str = ""
    add_prefix_space: bool = True
    use_regex: bool = True
    single: list[dict[str, Any]] = []
    normalizers: list["_Step"] = []
    pretokenizers: list["_Step"] = []
    processors: list["_Step"] = []


class _TokenizerJson(msgspec.Struct):
    """The keys of another program's tokenizer.json that are read."""

    model: _Model = msgspec.field(default_factory=_Model)
    added_tokens: list[_AddedToken] = []
    normalizer: _Step | None = None
    pre_tokenizer: _Step | None = None
    post_processor: _Step | None = None


class _TokenizerConfig(msgspec.Struct):
    """The keys of tokenizer_config.json that are read."""

    add_prefix_space: bool | None = None
    add_bos_token: bool | None = None


def read_tokenizer(folder: Path) -> Tokenizer | None:
    """Return the tokenizer of a run, an export or a Hugging Face folder; None without files.

    Raises:
        RunError: A file is damaged, or the tokenizer is not a byte-level BPE like GPT-2's.
    """
    for place in (folder / OWN, folder):
        path = place / "tokenizer.json"
        if path.is_file() and "kind" in read_record(path):
            return load_tokenizer(place)
    path, merges, vocabulary = (folder / name for name in _FILES)
    if path.is_file():
        tokenizer = _of_json(path)
    elif vocabulary.is_file() and merges.is_file():
        ids = read_record(vocabulary, dict[str, int])
        tokenizer = _byte_level(vocabulary, read_text(merges), ids)
    elif merges.is_file():
        tokenizer = GPT2Tokenizer.from_file(merges)
    else:
        return None
    _check_config(folder / "tokenizer_config.json")
    return tokenizer


_FILES = ("tokenizer.json", "merges.txt", "vocab.json")


def _check_config(path: Path) -> None:
    config = read_record(path, _TokenizerConfig) if path.is_file() else _TokenizerConfig()
    for key in config.__struct_fields__:
        if getattr(config, key):
            raise _refusal(path, f"{key}=true", _REMOVE)


def _of_json(path: Path) -> Tokenizer:
    content = read_record(path, _TokenizerJson)
    for difference, way_out in _steps_beyond_gpt2(content):
        raise _refusal(path, difference, way_out)
    model = content.model
    lines = [line if isinstance(line, str) else " ".join(line) for line in model.merges]
    ids = dict(model.vocab) if isinstance(model.vocab, Mapping) else {}
    ids |= {token.content: token.id for token in content.added_tokens}
    return _byte_level(path, "\n".join(lines), ids)


def _refusal(path: Path, difference: str, way_out: str) -> RunError:
    return RunError(
        f"{path}: {difference}, which GPT-2's tokenizer does not have: here texts would get other "
        f"ids than the model has learned; {way_out}"
    )


_Differences = Iterator[tuple[str, str]]
"""A feature that GPT-2's tokenizer lacks, and the way out."""


def _steps_beyond_gpt2(content: _TokenizerJson) -> _Differences:
    yield from _models(content.model)
    for step in _flat(content.normalizer):
        yield f"it has the normalizer {step.type}", _REMOVE
    yield from _cuts(_flat(content.pre_tokenizer), bool(content.model.merges))
    yield from _templates(_flat(content.post_processor))
    yield from _added(content.added_tokens)


def _models(model: _Model) -> _Differences:
    if model.type != "BPE":
        yield f"its model is {model.type or 'not named'} and not BPE", _OTHER
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if value := getattr(model, key):
            yield f"its BPE has {key}={value!r}", _OTHER
    for key in ("byte_fallback", "ignore_merges"):
        if getattr(model, key):
            yield f"its BPE has {key}=true", _OTHER


def _cuts(steps: list[_Step], has_merges: bool) -> _Differences:
    for step in steps:
        if step.type != "ByteLevel":
            yield f"it has the pre-tokenizer {step.type}", _OTHER
        elif step.add_prefix_space:
            yield "its ByteLevel has add_prefix_space=true, a space before every text", _OTHER
        elif has_merges and not step.use_regex:
            yield "its ByteLevel has use_regex=false, so that tokens span words", _OTHER
    if not steps:
        yield "it has no pre-tokenizer", _OTHER


def _templates(steps: list[_Step]) -> _Differences:
    for step in steps:
        added = [part["SpecialToken"] for part in step.single if "SpecialToken" in part]
        if added:
            yield f"its template adds {added[0].get('id')!r} to every text", _REMOVE
        elif step.type not in ("ByteLevel", "TemplateProcessing"):
            yield f"it has the post-processor {step.type}", _REMOVE


def _added(tokens: list[_AddedToken]) -> _Differences:
    for token in tokens:
        if token.content != END_OF_TEXT:
            yield f"it has the added token {token.content!r}", _OTHER
        elif token.single_word or token.lstrip or token.rstrip:
            yield f"its {END_OF_TEXT} takes the spaces around it, or asks for them", _OTHER


def _flat(step: _Step | None) -> list[_Step]:
    """Return the steps of a sequence in order; [] for None."""
    if step is None:
        return []
    if step.type != "Sequence":
        return [step]
    parts = (*step.normalizers, *step.pretokenizers, *step.processors)
    return [each for part in parts for each in _flat(part)]


def _byte_level(path: Path, merges: str, ids: Mapping[str, int]) -> Tokenizer:
    """Return the tokenizer with these merges and ids.

    Raises:
        RunError: GPT-2's rules give a token another id; names the first such token.
    """
    try:
        tokenizer = GPT2Tokenizer(merges, _end(path, ids)) if merges else ByteTokenizer()
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


def _end(path: Path, ids: Mapping[str, int]) -> int:
    if END_OF_TEXT not in ids:
        raise RunError(f"{path}: it has no {END_OF_TEXT}, the end of text of GPT-2; {_OTHER}")
    return ids[END_OF_TEXT]
