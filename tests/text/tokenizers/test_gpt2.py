"""GPT-2's byte-level BPE, on merges made up for the tests."""

import pytest

from mlx_attn.errors import RunError
from mlx_attn.text import downloads
from mlx_attn.text import subwords as gpt2
from mlx_attn.text.downloads import GPT2_MERGES
from mlx_attn.text.subwords import GPT2Tokenizer
from mlx_attn.text.tokenizers import train_tokenizer

MERGES = "#version: 0.2\nh e\nt he\nĠ the\nl l\nl o\n"
MERGED = 256  # the token of the first merge


def test_single_bytes_are_numbered_in_the_published_order():
    tokenizer = GPT2Tokenizer(MERGES)
    assert tokenizer.encode("!").tolist() == [0]
    assert tokenizer.encode("A").tolist() == [32]
    assert tokenizer.encode("\0").tolist() == [188]
    assert tokenizer.encode("\n").tolist() == [198]
    assert tokenizer.encode(" ").tolist() == [220]
    assert tokenizer.token_bytes(255) == b"\xad"
    assert sorted(map(tokenizer.token_bytes, range(256))) == [bytes([byte]) for byte in range(256)]


def test_merges_follow_the_bytes_and_the_end_of_text_is_last_or_first():
    tokenizer = GPT2Tokenizer(MERGES)
    assert tokenizer.vocab_size == 256 + 5 + 1
    assert [tokenizer.token_bytes(MERGED + rank) for rank in range(3)] == [b"he", b"the", b" the"]
    assert tokenizer.encode("<|endoftext|>").tolist() == [261]
    first = GPT2Tokenizer(MERGES, end=0)
    assert first.encode("<|endoftext|>!A").tolist() == [0, 1, 33]
    assert first.token_bytes(MERGED + 1) == b"he"


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("hello", [b"he", b"ll", b"o"]),  # "l l" comes before "l o", so the second l is taken
        ("lo", [b"lo"]),
        ("lllll", [b"ll", b"ll", b"l"]),
        ("the the", [b"the", b" the"]),
    ],
    ids=["the earliest merge first", "a later merge", "from left to right", "not across words"],
)
def test_merges_are_applied_in_their_order(text, tokens):
    tokenizer = GPT2Tokenizer(MERGES)
    assert list(map(tokenizer.token_bytes, tokenizer.encode(text))) == tokens


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I'll say it's 42nd", ["I", "'ll", " say", " it", "'s", " 42", "nd"]),
        ("I'LL", ["I", "'", "LL"]),
        ("a   b", ["a", "  ", " b"]),
        ("a \n\n b ", ["a", " \n\n", " b", " "]),
        ("x!? (y)", ["x", "!?", " (", "y", ")"]),
        ("été 漢字", ["été", " 漢字"]),
        ("½Ⅷ٣²7", ["½Ⅷ٣²7"]),  # numbers of every sort
        ("e\u0301x", ["e", "\u0301", "x"]),  # a combining mark is no letter
        ("a\x1cb\x85\xa0c", ["a", "\x1c", "b", "\x85", "\xa0", "c"]),  # U+001C is no white space
        ("go!<|endoftext|> on", ["go", "!", "<|endoftext|>", " on"]),
        ("a  <|endoftext|>", ["a", "  ", "<|endoftext|>"]),
    ],
)
def test_a_text_is_cut_as_gpt2_cuts_it(text, expected):
    assert list(gpt2._words(text)) == expected


def test_the_merges_are_fetched_by_name(tmp_path, monkeypatch):
    path = tmp_path / "merges"
    path.write_text(MERGES, encoding="utf-8")
    asked = []
    monkeypatch.setattr(downloads, "fetch", lambda *what: asked.append(what) or path)
    assert train_tokenizer("gpt2", "", directory=tmp_path).vocab_size == 262
    assert asked == [(GPT2_MERGES, tmp_path)]


@pytest.mark.parametrize("content", ["", "a b c\n", "a b\n\x00 x\n"])
def test_a_file_that_is_no_list_of_merges_is_refused(content, tmp_path, monkeypatch):
    path = tmp_path / "merges"
    path.write_text(content, encoding="utf-8")
    monkeypatch.setattr(downloads, "fetch", lambda *what: path)
    with pytest.raises(RunError, match="not a file of GPT-2's merges"):
        GPT2Tokenizer.published(tmp_path)
