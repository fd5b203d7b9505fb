import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_attn.errors import ConfigError
from mlx_attn.sampling.config import SamplerConfig
from mlx_attn.sampling.generate import StreamingDetokenizer, prompt_tokens, stream_generate
from mlx_attn.text.characters import ByteTokenizer, CharacterTokenizer

BYTES = ByteTokenizer()
GREEDY = SamplerConfig(temp=0.0)


def test_the_pieces_are_the_text_of_their_tokens_and_the_last_has_a_finish_reason(gpt):
    pieces = list(stream_generate(gpt(), BYTES, "Once", SamplerConfig(temp=1.0, seed=1), 50))
    assert "".join(p.text for p in pieces) == BYTES.decode(p.token for p in pieces)
    assert [p.statistics.finish_reason for p in pieces] == [None] * 49 + ["length"]


def test_statistics_count_tokens_time_and_memory(gpt):
    last = list(stream_generate(gpt(), BYTES, "Once", GREEDY, 8))[-1].statistics
    assert (last.prompt_tokens, last.tokens, last.finish_reason) == (4, 8, "length")
    assert last.cache_bytes_per_token == 2 * 2 * 16 * 4  # layers, key and value, width, float32
    assert min(last.prompt_tok_s, last.tok_s, last.peak_memory) > 0
    long = next(stream_generate(gpt(context_length=12), BYTES, "Once upon a time", GREEDY))
    assert (long.statistics.prompt_tokens, long.statistics.prompt_read) == (16, 6)


def test_a_stop_text_ends_the_stream_before_it_and_no_character_is_split(reciter):
    story = "Zoë & the 🐉 said “hé”"
    model = reciter(f"{story}. More")
    pieces = list(stream_generate(model, BYTES, "Once", GREEDY, 50, [". "]))
    assert [p.text for p in pieces if p.text] == list(story)
    assert pieces[-1].statistics.finish_reason == "stop"


def test_what_cannot_be_written_is_refused_before_the_first_piece(gpt):
    with pytest.raises(ConfigError, match="'d'"):
        stream_generate(gpt(vocab_size=3), CharacterTokenizer.train("abc"), "abcd")
    with pytest.raises(ConfigError, match="max_tokens=0 must be at least 1"):
        stream_generate(gpt(), BYTES, "Once", max_tokens=0)
    # But an empty prompt is a newline, or the first token.
    assert prompt_tokens(BYTES, "", [], 12) == [10]
    assert prompt_tokens(CharacterTokenizer.train("abc"), "", [], 12) == [0]


# Pieces of text.

LAWS = settings(max_examples=100)


def pushed(tokens: list[int], stop: tuple[str, ...] = ()) -> tuple[list[str], StreamingDetokenizer]:
    """The pieces until the end, or until a stop text."""
    stream, pieces = StreamingDetokenizer(BYTES, stop), []
    for n, token in enumerate(tokens, 1):
        pieces.append(stream.push(token, last=n == len(tokens)))
        if stream.stop_text:
            break
    return pieces, stream


@LAWS
@given(st.lists(st.integers(0, 255), min_size=1))
def test_pieces_of_any_tokens_add_up_to_what_the_tokenizer_decodes(tokens):
    assert "".join(pushed(tokens)[0]) == BYTES.decode(tokens)


@LAWS
@given(st.text("ab.", min_size=1), st.text("ab.", min_size=1, max_size=3))
def test_a_stop_text_cuts_the_text_before_its_first_occurrence(text, stop):
    pieces, stream = pushed(list(text.encode()), (stop,))
    assert "".join(pieces) == text.split(stop)[0]
    assert stream.stop_text == (stop if stop in text else "")


def test_what_may_begin_a_stop_text_waits_and_the_first_of_several_counts():
    assert pushed(list(b"one\n\ntwo"), ("\n\nend",))[0] == [*"one", "", "", "\n\nt", "w", "o"]
    pieces, _ = pushed(list(b"one two three"), ("three", "two"))
    assert "".join(pieces) == "one "
    with pytest.raises(ConfigError, match="stop text is empty"):
        StreamingDetokenizer(BYTES, ("",))
