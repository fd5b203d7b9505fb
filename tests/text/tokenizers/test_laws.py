"""Promises of every kind of tokenizer."""

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_attn.errors import ConfigError, RunError
from mlx_attn.text.characters import SymbolTokenizer
from mlx_attn.text.foreign import ForeignTokenizer
from mlx_attn.text.tokenizers import KINDS, Tokenizer, load_tokenizer, train_tokenizer

TEXT = "The cat sat on the mat, and the other cat sat on the other mat.\nWhat a day!\n" * 20
MERGES = "#version: 0.2\nt h\nĠ th\nĠth e\nĠ c\n! !\nĊ Ċ\nÃ ©\n"

LOSSLESS = ("byte", "bpe", "unigram", "gpt2")  # of any text; `char` only of its own characters

HARD = [
    "",
    " ",
    "\n",
    "  two  spaces  and trailing  ",
    " leading",
    "\n\n\nlines\n\n",
    "carriage\r\nreturn\r",
    "\ttab\t\tstop",
    "nul \0 and \0\0",
    "the sign \u2581 that\u2581\u2581 SentencePiece uses \u2581",
    "\u2585 \u2047 \ufffd \ufeff",
    "<unk> <s> </s> <0x0A> <|endoftext|>",
    "e\u0301 a\u0300 combining \u0301",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1ea\U0001f1fa \u2764\ufe0f",
    "\uffff \ufdd0 \U0010ffff \U0001fffe",
    "\x01\x1b\x7f\x85\u2028\u2029\xa0\u3000",
    "語る 한국어 العربية हिन्दी",
    "a" * 3000 + " " * 3000,
]


@functools.cache
def tokenizer(kind: str) -> Tokenizer:
    if kind == "gpt2":
        return ForeignTokenizer.from_merges(MERGES)
    return train_tokenizer(kind, TEXT + "".join(HARD) if kind == "char" else TEXT, 400)


anything = st.text(st.characters(exclude_categories=["Cs"]))
likely = st.lists(
    st.sampled_from([" ", "\n", "\0", "\u2581", "the", " the", "cat", "é", "\r", "!"])
)


@pytest.mark.parametrize("kind", LOSSLESS)
@settings(max_examples=200)
@given(text=anything | likely.map("".join))
def test_any_text_comes_back_exactly(kind, text):
    assert tokenizer(kind).decode(tokenizer(kind).encode(text)) == text


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_uint16_within_the_vocabulary(kind):
    tokens = tokenizer(kind).encode(TEXT)
    assert tokens.dtype == np.uint16
    assert tokens.max() < tokenizer(kind).vocab_size
    assert tokenizer(kind).encode("").shape == (0,)
    for token in (-1, tokenizer(kind).vocab_size):
        with pytest.raises(ConfigError, match=f"token {token} is outside the vocabulary"):
            tokenizer(kind).decode([token])


@pytest.mark.parametrize("kind", KINDS)
def test_a_newline_between_words_is_one_token_of_its_own(kind):
    (newline,) = tokenizer(kind).encode("\n")
    pieces = [tokenizer(kind).encode(part).tolist() for part in ("the cat", " sat", "mat.")]
    joined = [token for piece in pieces for token in [newline, *piece]][1:]
    assert tokenizer(kind).encode("the cat\n sat\nmat.").tolist() == joined


@pytest.mark.parametrize("kind", KINDS)
def test_a_lone_surrogate_is_refused_with_its_place(kind):
    with pytest.raises(ConfigError, match=r"character 2 .* lone surrogate U\+D800"):
        tokenizer(kind).encode("ab\ud800c")


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_tokenizer_is_the_same_when_loaded_and_encodes_in_parts(kind, tmp_path):
    tokenizer(kind).save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    loaded.block = 60
    assert max(map(len, loaded._blocks(TEXT))) < 120
    assert loaded.kind == kind
    assert loaded.vocab_size == tokenizer(kind).vocab_size
    for text in [TEXT, *HARD]:
        assert loaded.encode(text).tolist() == tokenizer(kind).encode(text).tolist()
        assert loaded.decode(loaded.encode(text)) == text


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_or_truncated_file_of_a_saved_tokenizer_is_named(kind, tmp_path):
    tokenizer(kind).save(tmp_path)
    for path in tmp_path.iterdir():
        content = path.read_bytes()
        path.unlink()
        with pytest.raises(RunError, match=rf"{path.name}: .*[Nn]o such file"):
            load_tokenizer(tmp_path)
        path.write_bytes(content[: len(content) // 2])
        with pytest.raises(RunError, match="damaged"):
            load_tokenizer(tmp_path)
        path.write_bytes(content)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("text", ["one-word-a-line\n" * 30, " " * 300 + "a"])
def test_a_space_that_is_rare_in_the_training_text_stays_a_space(kind, text):
    trained = train_tokenizer(kind, text, 400)
    for each in (text, "one two  three ", "\u2581 \u2581"):
        assert trained.decode(trained.encode(each)) == each


def test_bytes_are_their_own_tokens_and_characters_are_numbered_in_sorted_order():
    assert train_tokenizer("byte", "").encode("aé\n").tolist() == [0x61, 0xC3, 0xA9, 0x0A]
    characters = train_tokenizer("char", "hello\n")
    assert characters.vocab_size == 5
    assert characters.encode("\nehlo").tolist() == [0, 1, 2, 3, 4]


def test_unknown_characters_are_named_in_one_short_line():
    text = "abcdefghijklmnopqrstuvwxyzABC"
    with pytest.raises(ConfigError, match=r"26 characters .* 'h', \.\.\.;") as caught:
        train_tokenizer("char", "abc").encode(text)
    assert len(str(caught.value)) < 250
    for trained, typed, form in (("re\u0301d", "r\xe9d", "NFD"), ("r\xe9d", "re\u0301d", "NFC")):
        with pytest.raises(ConfigError, match=f"write it in Unicode's form {form}, as"):
            train_tokenizer("char", trained).encode(typed)


def test_a_text_is_read_symbol_by_symbol_from_a_newline_on():
    symbols = SymbolTokenizer(["k0", "k1", "v0"])
    assert symbols.encode("k0 v0  k1").tolist() == [0, 1, 3, 2]
    assert symbols.encode("\nk0").tolist() == symbols.encode("k0").tolist()
    symbols.block = 4
    assert symbols.encode("k0\nk1 v0\nk1").tolist() == [0, 1, 0, 2, 3, 0, 2]
