import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_attn.errors import ConfigError
from mlx_attn.sampling.generate import StreamingDetokenizer
from mlx_attn.text.characters import ByteTokenizer

LAWS = settings(max_examples=100)
BYTES = ByteTokenizer()
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


def pushed(tokens: list[int], stop: tuple[str, ...] = ()) -> tuple[list[str], StreamingDetokenizer]:
    """The pieces until the end, or until a stop text."""
    stream, pieces = StreamingDetokenizer(BYTES, stop), []
    for n, token in enumerate(tokens, 1):
        pieces.append(stream.push(token, last=n == len(tokens)))
        if stream.stop_text:
            break
    return pieces, stream


@LAWS
@given(TEXT)
def test_pieces_hold_whole_characters_and_add_up_to_the_text(text):
    pieces, _ = pushed(list(text.encode()))
    assert "".join(pieces) == text
    assert all(text[: len("".join(pieces[:n]))] == "".join(pieces[:n]) for n in range(len(pieces)))


@LAWS
@given(st.lists(st.integers(0, 255), min_size=1))
def test_pieces_of_any_tokens_add_up_to_what_the_tokenizer_decodes(tokens):
    assert "".join(pushed(tokens)[0]) == BYTES.decode(tokens)


def test_a_character_comes_with_its_last_byte():
    assert pushed(list("aé€😀".encode()))[0] == ["a", "", "é", "", "", "€", "", "", "", "😀"]


def test_an_unfinished_character_at_the_end_is_marked():
    assert pushed([*b"a", 0xE2, 0x82])[0] == ["a", "", "�"]


@LAWS
@given(st.text("ab.", min_size=1), st.text("ab.", min_size=1, max_size=3))
def test_a_stop_text_cuts_the_text_before_its_first_occurrence(text, stop):
    pieces, stream = pushed(list(text.encode()), (stop,))
    assert "".join(pieces) == text.split(stop)[0]
    assert stream.stop_text == (stop if stop in text else "")


def test_what_may_begin_a_stop_text_waits():
    assert pushed(list(b"one\n\ntwo"), ("\n\nend",))[0] == [*"one", "", "", "\n\nt", "w", "o"]


def test_the_first_of_several_stop_texts_counts():
    pieces, _ = pushed(list(b"one two three"), ("three", "two"))
    assert "".join(pieces) == "one "


def test_an_empty_stop_text_is_refused():
    with pytest.raises(ConfigError, match="stop text is empty"):
        StreamingDetokenizer(BYTES, ("",))
