"""Tokenizers of other programs: the ids of the library, or refused in one line."""

import json
import sys
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers as library

from mlx_attn.errors import ConfigError, RunError
from mlx_attn.text import downloads
from mlx_attn.text.downloads import GPT2_MERGES
from mlx_attn.text.foreign import END_OF_TEXT, ForeignTokenizer, bytes_by_symbol, read_foreign
from mlx_attn.text.tokenizers import load_tokenizer, train_tokenizer

MERGES = "#version: 0.2\nh e\nt he\nĠ the\nl l\nl o\n"
TEXT = "hello  the fox isn't 13, naïve\n\n the" + END_OF_TEXT + " on"
Change = Callable[[dict[str, Any]], Any]


def written(folder: Path, change: Change = lambda content: None) -> Path:
    """A folder with the tokenizer.json of a byte-level BPE, changed."""
    content = json.loads(ForeignTokenizer.from_merges(MERGES).content)
    change(content)
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def test_the_bytes_have_the_published_order_then_come_the_merges_and_the_end_of_text():
    tokenizer = ForeignTokenizer.from_merges(MERGES)
    assert [tokenizer.encode(text).tolist() for text in ("!", "A", "\0", "\n", " ")] == [
        *([0], [32], [188], [198], [220])
    ]
    assert sorted(map(tokenizer.token_bytes, range(256))) == [bytes([byte]) for byte in range(256)]
    assert [*map(tokenizer.token_bytes, range(256, 259))] == [b"he", b"the", b" the"]
    assert tokenizer.encode("the the lllll").tolist() == [257, 258, 220, 259, 259, 75]
    assert tokenizer.encode(END_OF_TEXT).tolist() == [261]


def end_first(content: dict[str, Any]) -> None:
    """As `BpeTrainer(special_tokens=["<|endoftext|>"])` numbers them."""
    vocab = content["model"]["vocab"]
    vocab |= {token: number + 1 for token, number in vocab.items() if token != END_OF_TEXT}
    vocab[END_OF_TEXT] = content["added_tokens"][0]["id"] = 0


def end_beside(content: dict[str, Any]) -> None:
    """As `add_special_tokens` has it: not among the tokens of the model."""
    del content["model"]["vocab"][END_OF_TEXT]


def end_of_llama(content: dict[str, Any]) -> None:
    """Another name of the token."""
    content["model"]["vocab"]["</s>"] = content["model"]["vocab"].pop(END_OF_TEXT)
    content["added_tokens"][0]["content"] = "</s>"


def with_digits(content: dict[str, Any]) -> None:
    """Rules that GPT-2 does not have, a second special token, and how a batch's texts are cut."""
    steps = [{"type": "Digits", "individual_digits": True}, content["pre_tokenizer"]]
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    content["added_tokens"].append({**content["added_tokens"][0], "id": 262, "content": "[PAD é]"})
    content["truncation"] = {"max_length": 9, "strategy": "LongestFirst", "stride": 0}


@pytest.mark.parametrize("change", [end_first, end_beside, end_of_llama, with_digits])
def test_the_ids_are_the_library_s_also_after_saving(change, tmp_path):
    folder = written(tmp_path, change)
    theirs = library.Tokenizer.from_file(str(folder / "tokenizer.json"))
    theirs.no_truncation()
    tokenizer = load_tokenizer(folder)
    tokenizer.save(tmp_path / "run")
    for each in (tokenizer, load_tokenizer(tmp_path / "run")):
        assert each.encode(TEXT).tolist() == theirs.encode(TEXT).ids
        assert each.decode(each.encode(TEXT)) == TEXT
    assert tokenizer.kind == ("gpt2" if change in (end_first, end_beside) else "foreign")
    assert tokenizer.end_of_text == ("</s>" if change is end_of_llama else END_OF_TEXT)


@pytest.mark.parametrize("names", [("merges.txt", "vocab.json"), ("vocab.bpe", "encoder.json")])
def test_merges_have_the_ids_beside_them_or_those_of_gpt2(names, tmp_path):
    (tmp_path / names[0]).write_text(MERGES, encoding="utf-8")
    plain = ForeignTokenizer.from_merges(MERGES)
    assert read_foreign(tmp_path).encode(TEXT).tolist() == plain.encode(TEXT).tolist()
    first = load_tokenizer(written(tmp_path / "first", end_first))
    ids = {token: n for n, token in enumerate([END_OF_TEXT, *bytes_by_symbol()])}
    ids |= {piece: 257 + n for n, piece in enumerate(("he", "the", "Ġthe", "ll", "lo"))}
    (tmp_path / names[1]).write_text(json.dumps(ids))
    assert read_foreign(tmp_path).encode(TEXT).tolist() == first.encode(TEXT).tolist()


@pytest.mark.parametrize("end", [261, 258])
def test_a_tiktoken_file_has_the_ids_of_its_merges(end, tmp_path):
    ids: dict[str, int] = json.loads(ForeignTokenizer.from_merges(MERGES).content)["model"]["vocab"]
    ids = {token: number + (number >= end) for token, number in ids.items()} | {END_OF_TEXT: end}
    merged = ForeignTokenizer.from_merges(MERGES, ids)
    rows = [
        f"{b64encode(merged.token_bytes(token)).decode()} {token}\n"
        for token in range(merged.vocab_size)
        if token != end
    ]
    (tmp_path / "own.tiktoken").write_text("".join(rows))
    read = load_tokenizer(tmp_path / "own.tiktoken")
    assert (read.end, read.encode(TEXT).tolist()) == (end, merged.encode(TEXT).tolist())
    (tmp_path / "own.tiktoken").write_text("".join(rows).replace(rows[256], ""))
    with pytest.raises(RunError, match="b'the' is not made of two earlier tokens"):
        load_tokenizer(tmp_path / "own.tiktoken")


def test_the_ids_alone_name_the_merges_beside_them(tmp_path):
    merged = ForeignTokenizer.from_merges(MERGES)
    ids = json.loads(merged.content)["model"]["vocab"]
    (tmp_path / "encoder.json").write_text(json.dumps(ids))
    with pytest.raises(RunError, match=r"vocab\.bpe: no such file"):
        load_tokenizer(tmp_path / "encoder.json")
    (tmp_path / "vocab.bpe").write_text(MERGES, encoding="utf-8-sig")
    assert load_tokenizer(tmp_path / "encoder.json").vocabulary == merged.vocabulary


def test_a_folder_without_a_tokenizer_says_what_it_may_hold(tmp_path):
    with pytest.raises(RunError, match=r"no such file, nor merges\.txt with vocab\.json or vocab"):
        load_tokenizer(tmp_path)


def setting(place: str, value: Any) -> Change:
    """A change of one key of the file, such as "model.dropout"."""

    def change(content: dict[str, Any]) -> None:
        *path, last = place.split(".")
        for key in path:
            content = content[key]
        content[last] = value

    return change


def without_two(content: dict[str, Any]) -> None:
    vocab = content["model"]["vocab"]
    rest = [token for token in vocab if token not in "!?"]
    content["model"]["vocab"] = {token: number for number, token in enumerate(rest)}
    content["added_tokens"][0]["id"] = len(rest) - 1


ADDS_A_START = library.processors.TemplateProcessing(
    f"{END_OF_TEXT} $A", special_tokens=[(END_OF_TEXT, 261)]
)
REFUSED = {
    "a text does not come back from its tokens": setting("normalizer", {"type": "Lowercase"}),
    "a text does not come back": setting("pre_tokenizer.add_prefix_space", True),
    "it adds tokens to every text": setting(
        "post_processor", json.loads(ADDS_A_START.__getstate__())
    ),
    "it lacks 2 of 256 bytes, such as '!'": without_two,
    "the tokenizers library cannot read it": setting("model.type", "Other"),
    "its ids are not 0, 1, 2": lambda content: content["model"]["vocab"].update({"x y": 999}),
}


@pytest.mark.parametrize(("message", "change"), REFUSED.items(), ids=REFUSED)
def test_a_tokenizer_that_changes_a_text_is_refused(message, change, tmp_path):
    with pytest.raises(RunError, match=f"tokenizer.json: .*{message}") as told:
        load_tokenizer(written(tmp_path, change))
    assert len(str(told.value).splitlines()) == 1


def test_a_text_that_a_normalizer_would_change_is_refused_with_the_place(tmp_path):
    tokenizer = load_tokenizer(written(tmp_path, setting("normalizer", {"type": "NFC"})))
    assert tokenizer.decode(tokenizer.encode("a caf\xe9")) == "a caf\xe9"
    with pytest.raises(ConfigError, match=r"tokens, 'e\\u0301 on' is '\\xe9 on': write it so"):
        tokenizer.encode("a cafe\u0301 on")


@pytest.mark.parametrize("content", ["", "a b c\n", "a b\n\x00 x\n"])
def test_a_file_that_is_no_list_of_merges_is_refused(content, tmp_path):
    (tmp_path / "merges").write_text(content, encoding="utf-8")
    with pytest.raises(RunError, match="merges: not a tokenizer that can be used here"):
        read_foreign(tmp_path / "merges")


def test_the_published_merges_are_fetched_by_name(tmp_path, monkeypatch):
    (tmp_path / "merges").write_text(MERGES, encoding="utf-8")
    asked = []
    monkeypatch.setattr(downloads, "fetch", lambda *what: asked.append(what) or tmp_path / "merges")
    assert train_tokenizer("gpt2", "", directory=tmp_path).vocab_size == 262
    assert asked == [(GPT2_MERGES, tmp_path)]


def test_a_library_that_is_missing_is_told_from_a_broken_one(tmp_path, monkeypatch):
    folder = written(tmp_path)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(RunError, match=r"^GPT-2's tokenizer .+ pip install 'mlx-attn\[gpt2\]'$"):
        load_tokenizer(folder)
    monkeypatch.setattr("mlx_attn.errors.import_module", lambda _: exec("from os import gone"))
    with pytest.raises(RunError, match=r"^tokenizers: cannot import name 'gone'"):
        load_tokenizer(folder)
