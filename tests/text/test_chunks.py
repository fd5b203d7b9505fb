"""A text may be tokenized in chunks: the tokens are those of the whole."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mlx_attn.text import corpus as chunks
from mlx_attn.text.corpus import between, chunked
from mlx_attn.text.subwords import GPT2Tokenizer
from mlx_attn.text.tokenizers import KINDS, train_tokenizer

SIZE = 60  # characters of a chunk here
LETTERS = "ab é'1.<|endoftext|>\n\n\r\t\u2581\u3000 the cafe語 "
MERGES = "t h\nĠ th\nĠth e\nĊ Ċ\nĠ Ġ\n"

texts = st.lists(st.sampled_from([*LETTERS, " the", "<|endoftext|>", "\n\n"]), max_size=400)
long_texts = st.builds("".join, texts)


@pytest.fixture(autouse=True, scope="module")
def small_chunks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "CHUNK", SIZE)
        yield


@pytest.fixture(scope="module")
def tokenizers():
    made = {kind: train_tokenizer(kind, LETTERS * 9, 330) for kind in KINDS if kind != "gpt2"}
    return {**made, "gpt2": GPT2Tokenizer(MERGES)}


def ends_well(chunk: str) -> bool:
    return not chunk[-1].isspace()


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=60)
@given(text=long_texts)
def test_the_tokens_of_the_chunks_are_those_of_the_text(tokenizers, kind, text):
    parts = list(chunked([text]))
    assume(all(map(ends_well, parts[:-1])))
    tokens = [token for part in parts for token in tokenizers[kind].encode(part).tolist()]
    assert tokens == tokenizers[kind].encode(text).tolist()


@settings(deadline=None, max_examples=100)
@given(long_texts, st.integers(1, 50))
def test_chunks_are_the_text_whatever_its_blocks(text, block):
    parts = list(chunked(text[i : i + block] for i in range(0, len(text), block)))
    assert "".join(parts) == text
    assert parts == list(chunked([text]))
    assert all(0 < len(part) <= SIZE for part in parts)


@settings(deadline=None, max_examples=100)
@given(long_texts, long_texts)
def test_a_text_that_is_written_on_keeps_all_chunks_but_the_last(text, more):
    parts = list(chunked([text]))
    assert list(chunked([text + more]))[: len(parts) - 1] == parts[:-1]


def test_a_chunk_ends_before_white_space_that_follows_a_word():
    assert next(chunked(["word " * 20])) == "word " * 11 + "word"
    assert next(chunked(["word.\n\n" * 20])) == "word.\n\n" * 7 + "word."


def test_a_text_without_spaces_is_cut_at_the_size():
    assert [len(part) for part in chunked(["語" * 150])] == [60, 60, 30]


def test_a_text_of_one_chunk_is_not_cut():
    assert list(chunked(["a b " * 15])) == ["a b " * 15]


@given(st.lists(st.text("xyz", max_size=5)), st.integers(0, 20), st.integers(0, 20))
def test_a_part_of_a_text_in_pieces(pieces, start, stop):
    assert "".join(between(pieces, start, stop)) == "".join(pieces)[start:stop]
