import pytest

from mlx_attn.errors import ConfigError
from mlx_attn.sampling.config import SamplerConfig
from mlx_attn.sampling.generate import prompt_tokens, stream_generate
from mlx_attn.text.characters import ByteTokenizer, CharacterTokenizer

BYTES = ByteTokenizer()
GREEDY = SamplerConfig(temp=0.0)


def test_the_pieces_are_the_text_of_their_tokens_and_the_last_has_a_finish_reason(gpt):
    pieces = list(stream_generate(gpt(), BYTES, "Once", SamplerConfig(temp=1.0, seed=1), 50))
    assert "".join(p.text for p in pieces) == BYTES.decode(p.token for p in pieces)
    assert [p.statistics.finish_reason for p in pieces] == [None] * 49 + ["length"]


def test_the_seed_that_was_drawn_makes_the_same_text_again(gpt):
    first = list(stream_generate(gpt(), BYTES, "Once", SamplerConfig(temp=1.0), 20))
    config = SamplerConfig(temp=1.0, seed=first[0].statistics.seed)
    again = stream_generate(gpt(), BYTES, "Once", config, 20)
    assert [p.token for p in again] == [p.token for p in first]


def test_statistics_count_tokens_time_and_memory(gpt):
    last = list(stream_generate(gpt(), BYTES, "Once", GREEDY, 8))[-1].statistics
    assert (last.prompt_tokens, last.tokens, last.finish_reason) == (4, 8, "length")
    assert last.cache_bytes_per_token == 2 * 2 * 16 * 4  # layers, key and value, width, float32
    assert min(last.prompt_tok_s, last.tok_s, last.peak_memory) > 0


def test_statistics_say_how_much_of_a_long_prompt_was_read(gpt):
    first = next(
        stream_generate(gpt(context_length=12), BYTES, "Once upon a time", GREEDY)
    ).statistics
    assert (first.prompt_tokens, first.prompt_read) == (16, 6)


def test_a_stop_text_ends_the_stream_before_it(reciter):
    pieces = list(stream_generate(reciter("The end. More"), BYTES, "Once", GREEDY, 50, [". "]))
    assert "".join(p.text for p in pieces) == "The end"
    assert pieces[-1].statistics.finish_reason == "stop"


def test_a_stream_never_splits_a_character(reciter):
    story = "Zoë & the 🐉 said “hé”"
    pieces = list(stream_generate(reciter(story), BYTES, "Once", GREEDY, len(story.encode())))
    assert [p.text for p in pieces if p.text] == list(story)


def test_what_cannot_be_written_is_refused_before_the_first_piece(gpt):
    with pytest.raises(ConfigError, match="'d'"):
        stream_generate(gpt(vocab_size=3), CharacterTokenizer.train("abc"), "abcd")
    for max_tokens in (0, -1):
        with pytest.raises(ConfigError, match=f"max_tokens={max_tokens} must be at least 1"):
            stream_generate(gpt(), BYTES, "Once", max_tokens=max_tokens)


def test_an_empty_prompt_is_a_newline_or_the_first_token():
    assert prompt_tokens(BYTES, "", [], 12) == [10]
    assert prompt_tokens(CharacterTokenizer.train("abc"), "", [], 12) == [0]
