"""Characters and bytes."""

import pytest

from mlx_attn.errors import ConfigError
from mlx_attn.text.tokenizers import train_tokenizer


def test_bytes_are_their_own_tokens():
    assert train_tokenizer("byte", "").encode("aé\n").tolist() == [0x61, 0xC3, 0xA9, 0x0A]


def test_characters_are_numbered_in_sorted_order():
    characters = train_tokenizer("char", "hello\n")
    assert characters.vocab_size == 5
    assert characters.encode("\nehlo").tolist() == [0, 1, 2, 3, 4]


def test_unknown_characters_are_named_with_the_way_out():
    characters = train_tokenizer("char", "abc")
    with pytest.raises(
        ConfigError,
        match="2 characters are not in the vocabulary of 3: '!', '\U0001f600'; leave",
    ):
        characters.encode("a!b\U0001f600!")


def test_many_unknown_characters_are_named_in_one_short_line():
    with pytest.raises(ConfigError, match=r"26 characters .* 'h', \.\.\.;") as caught:
        train_tokenizer("char", "ABC").encode("abcdefghijklmnopqrstuvwxyz")
    assert len(str(caught.value)) < 250


def test_more_characters_than_16_bits_are_refused():
    text = "".join(chr(0x10000 + code) for code in range(65_537))
    with pytest.raises(ConfigError, match="65,537 tokens are more than 65,536"):
        train_tokenizer("char", text)


def test_exactly_16_bits_of_characters_are_told_apart():
    text = "".join(chr(0x10000 + code) for code in range(65_536))
    assert train_tokenizer("char", text).encode(text).tolist() == list(range(65_536))
