"""Bytes, characters, and the symbols of a task."""

import pytest

from mlx_attn.errors import ConfigError
from mlx_attn.text.characters import SymbolTokenizer
from mlx_attn.text.tokenizers import Tokenizer, train_tokenizer

SYMBOLS = SymbolTokenizer(["k0", "k1", "v0"])


def test_bytes_are_their_own_tokens_and_characters_are_numbered_in_sorted_order():
    assert train_tokenizer("byte", "").encode("aé\n").tolist() == [0x61, 0xC3, 0xA9, 0x0A]
    characters = train_tokenizer("char", "hello\n")
    assert characters.vocab_size == 5
    assert characters.encode("\nehlo").tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a!b", "^1 character not in the vocabulary of 3: '!'; leave that out"),
        (
            "a!b\U0001f600!",
            "^2 characters not in the vocabulary of 3: '!', '\U0001f600'; leave",
        ),
        ("abcdefghijklmnopqrstuvwxyzABC", r"26 characters .* 'h', \.\.\.;"),
    ],
)
def test_unknown_characters_are_named_in_one_short_line(text, message):
    with pytest.raises(ConfigError, match=message) as caught:
        train_tokenizer("char", "abc").encode(text)
    assert len(str(caught.value)) < 250


def test_a_text_is_read_symbol_by_symbol_from_a_newline_on():
    assert isinstance(SYMBOLS, Tokenizer)
    assert SYMBOLS.encode("k0 v0  k1").tolist() == [0, 1, 3, 2]
    assert SYMBOLS.encode("\nk0").tolist() == SYMBOLS.encode("k0").tolist()
    assert SYMBOLS.encode("k0\nk1").tolist() == [0, 1, 0, 2]
