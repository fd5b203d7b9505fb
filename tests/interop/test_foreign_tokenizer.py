"""The tokenizer of a folder of Hugging Face: the same ids here, or refused by its name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlx_attn.errors import ConfigError, RunError
from mlx_attn.interop import imported
from mlx_attn.interop.imported import find_checkpoint, find_tokenizer, import_run
from mlx_attn.interop.targets import TARGETS, export_run
from mlx_attn.interop.tokenizer_json import read_tokenizer, tokenizer_json
from mlx_attn.sampling.generate import load_run
from mlx_attn.text.subwords import END_OF_TEXT, GPT2Tokenizer

from .conftest import TEXT, merges
from .test_import import gpt2_folder
from .test_tokenizer_json import encode

SPOKEN = TEXT[:60]
Change = Callable[[dict[str, Any]], Any]


def gpt2() -> dict[str, Any]:
    """The tokenizer.json of a byte-level BPE with its end of text last."""
    return tokenizer_json(GPT2Tokenizer(merges(100)))


def end_first(content: dict[str, Any]) -> None:
    """As `BpeTrainer(special_tokens=["<|endoftext|>"])` numbers them."""
    vocab = content["model"]["vocab"]
    vocab |= {token: number + 1 for token, number in vocab.items() if token != END_OF_TEXT}
    vocab[END_OF_TEXT] = content["added_tokens"][0]["id"] = 0


def end_beside(content: dict[str, Any]) -> None:
    """As `add_special_tokens` has it: not among the tokens of the model."""
    del content["model"]["vocab"][END_OF_TEXT]


def two_ways(content: dict[str, Any]) -> None:
    """Two merges make one token: `he` + `llo` and `hell` + `o`."""
    pairs = [["h", "e"], ["l", "l"], ["ll", "o"], ["he", "llo"], ["he", "ll"], ["hell", "o"]]
    tokens = [*dict.fromkeys(map("".join, pairs))]
    vocab = {token: n for n, token in enumerate([*list(content["model"]["vocab"])[:256], *tokens])}
    content["model"] |= {"merges": pairs, "vocab": {**vocab, END_OF_TEXT: len(vocab)}}
    content["added_tokens"][0]["id"] = len(vocab)


def written(folder: Path, change: Change) -> dict[str, Any]:
    content = gpt2()
    change(content)
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    return content


@pytest.mark.parametrize("change", [lambda content: None, end_first, end_beside, two_ways])
def test_the_ids_are_those_of_the_file(change, tmp_path):
    content, tokenizer = written(tmp_path, change), read_tokenizer(tmp_path)
    assert tokenizer is not None
    text = TEXT + "hello hell"
    vocab = {**content["model"]["vocab"], END_OF_TEXT: content["added_tokens"][0]["id"]}
    content["model"]["vocab"] = vocab
    assert tokenizer.encode(text).tolist() == encode(content, text)
    assert tokenizer.encode(END_OF_TEXT).tolist() == [vocab[END_OF_TEXT]]
    assert tokenizer.decode(tokenizer.encode(text + END_OF_TEXT)) == text + END_OF_TEXT


def test_ids_may_be_in_vocab_json_beside_the_merges_or_be_those_of_gpt2(tmp_path):
    (tmp_path / "merges.txt").write_text(merges(100), encoding="utf-8")
    assert ids_of(tmp_path) == encode(gpt2(), SPOKEN)
    content = gpt2()
    end_first(content)
    (tmp_path / "vocab.json").write_text(json.dumps(content["model"]["vocab"]), encoding="utf-8")
    assert ids_of(tmp_path) == encode(content, SPOKEN)


def ids_of(folder: Path) -> list[int]:
    tokenizer = read_tokenizer(folder)
    assert tokenizer is not None
    return tokenizer.encode(SPOKEN).tolist()


def setting(place: str, value: Any) -> Change:
    """A change of one key of the file, such as "model.dropout"."""

    def change(content: dict[str, Any]) -> None:
        *path, last = place.split(".")
        for key in path:
            content = content[key]
        content[last] = value

    return change


def added(content: str, **looks: Any) -> Change:
    return lambda file: file["added_tokens"].append({"id": 357, "content": content, **looks})


def without_two(content: dict[str, Any]) -> None:
    vocab = content["model"]["vocab"]
    rest = [token for token in vocab if token not in "!?"]
    content["model"]["vocab"] = {token: number for number, token in enumerate(rest)}


TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False}
REFUSED = {
    "the normalizer NFKC": setting(
        "normalizer", {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Strip"}]}
    ),
    "add_prefix_space=true": setting("pre_tokenizer.add_prefix_space", True),
    "use_regex=false": setting("pre_tokenizer.use_regex", False),
    "its pre-tokenizer is Digits, ByteLevel and not ByteLevel": setting(
        "pre_tokenizer", {"type": "Sequence", "pretokenizers": [{"type": "Digits"}, BYTE_LEVEL]}
    ),
    "its pre-tokenizer is missing": setting("pre_tokenizer", None),
    "its template adds '<s>' to every text": setting("post_processor", TEMPLATE),
    "the post-processor RobertaProcessing": setting(
        "post_processor", {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0]}
    ),
    "its model is WordPiece and not BPE": setting("model.type", "WordPiece"),
    'end_of_word_suffix="</w>"': setting("model.end_of_word_suffix", "</w>"),
    "ignore_merges=true": setting("model.ignore_merges", True),
    r"the added token '\[PAD\]'": added("[PAD]", special=True),
    "takes the spaces around it": added(END_OF_TEXT, lstrip=True),
    "has no <.endoftext.>": lambda content: (
        content["added_tokens"].clear(),
        content["model"]["vocab"].pop(END_OF_TEXT),
    ),
    "it lacks 2 of 357 bytes and merges, such as '!'": without_two,
    "it has 'b' as the id 64": lambda content: content["model"]["vocab"].update(a=65, b=64),
}


@pytest.mark.parametrize(("message", "change"), REFUSED.items(), ids=REFUSED.keys())
def test_what_gpt2_does_not_have_is_refused_by_name(message, change, tmp_path):
    written(tmp_path, change)
    with pytest.raises(RunError, match=message) as told:
        read_tokenizer(tmp_path)
    assert "--tokenizer" in str(told.value) or "remove it there" in str(told.value)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("tokenizer_config.json", {"add_bos_token": True}, r"config\.json: add_bos_token=true"),
        ("tokenizer.json", {"model": "BPE"}, r"tokenizer\.json: damaged"),
    ],
)
def test_the_configuration_beside_it_counts_and_a_damaged_file_is_one_line(
    file, content, message, tmp_path
):
    written(tmp_path, lambda file: None)
    (tmp_path / file).write_text(json.dumps(content))
    with pytest.raises(RunError, match=message):
        read_tokenizer(tmp_path)


ONLY_THE_TEXT = {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}]}


@pytest.mark.parametrize(
    "change",
    [
        setting("post_processor", ONLY_THE_TEXT),
        setting("normalizer", {"type": "Sequence", "normalizers": []}),
        setting("model.continuing_subword_prefix", ""),
    ],
    ids=["a template of the text", "an empty normalizer", "no prefix"],
)
def test_what_changes_no_id_is_no_obstacle(change, tmp_path):
    written(tmp_path, change)
    assert ids_of(tmp_path) == encode(gpt2(), SPOKEN)


@pytest.fixture
def folder(make_model, tmp_path) -> Path:
    """A folder of GPT-2 whose tokenizer has its end of text first."""
    model = make_model(vocab_size=357, qkv_bias=True, tied_head=True)
    made = gpt2_folder(model, tmp_path / "theirs")
    written(made, end_first)
    return made


def test_a_model_goes_in_and_out_with_its_ids(folder, tmp_path):
    content = json.loads((folder / "tokenizer.json").read_text())
    run = import_run(find_checkpoint(str(folder)), tmp_path / "run", "tales")
    loaded = load_run(str(run.path))
    assert loaded.tokenizer.encode(SPOKEN).tolist() == encode(content, SPOKEN)
    export_run(loaded, TARGETS["gpt2"], tmp_path / "out")
    again = json.loads((tmp_path / "out" / "tokenizer.json").read_text())
    assert again["model"]["vocab"] == content["model"]["vocab"]
    assert again["added_tokens"][0]["id"] == 0
    assert json.loads((tmp_path / "out" / "config.json").read_text())["eos_token_id"] == 0


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ("bpe", "--tokenizer bpe: its vocabulary would be made from"),
        ("nothing", "--tokenizer nothing: there is no such run, folder or file"),
    ],
)
def test_a_tokenizer_that_is_none_of_a_model_is_refused(named, reason, folder):
    with pytest.raises((ConfigError, RunError), match=reason):
        find_tokenizer(find_checkpoint(str(folder)), named)


def test_without_a_network_the_way_out_is_one_that_works(make_model, tmp_path, monkeypatch):
    monkeypatch.setenv("MLX_ATTN_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr(imported, "_GPT2_VOCABULARY", 60)
    folder = gpt2_folder(make_model(qkv_bias=True, tied_head=True), tmp_path / "theirs")
    with pytest.raises(RunError, match="or give --tokenizer with byte, gpt2, a run or"):
        find_tokenizer(find_checkpoint(str(folder)))
