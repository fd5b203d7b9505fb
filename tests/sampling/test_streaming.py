import math

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_attn.errors import ConfigError
from mlx_attn.runs import text_loss
from mlx_attn.sampling.config import SamplerConfig
from mlx_attn.sampling.generate import StreamingDetokenizer, prompt_tokens
from mlx_attn.text.characters import ByteTokenizer, CharacterTokenizer
from mlx_attn.text.corpus import prepare
from tests.runs import run_of
from tests.sampling.conftest import gpt

BYTES = ByteTokenizer()
GREEDY = SamplerConfig(temp=0.0)


def test_the_pieces_are_the_text_of_their_tokens_and_the_last_has_a_finish_reason():
    run = run_of(gpt(), BYTES)
    pieces = list(run.stream("Once", SamplerConfig(temp=1.0, seed=1), 50))
    assert "".join(p.text for p in pieces) == BYTES.decode(p.token for p in pieces)
    assert [p.statistics.finish_reason for p in pieces] == [None] * 49 + ["length"]


def test_what_cannot_be_written_is_refused_before_the_first_piece():
    with pytest.raises(ConfigError, match="'d'"):
        run_of(gpt(vocab_size=3), CharacterTokenizer.train("abc")).stream("abcd")
    with pytest.raises(ConfigError, match="max_tokens=0 must be at least 1"):
        run_of(gpt(), BYTES).stream("Once", max_tokens=0)
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


@pytest.mark.parametrize("corpus", ["tales", "copy"])
def test_the_start_is_what_stands_before_each_document_of_the_text(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr("mlx_attn.text.sources.TALES_BYTES", (4000, 1000))
    made = prepare(corpus, "byte", directory=tmp_path)
    start = run_of(gpt(), made.tokenizer, corpus=corpus).start_tokens
    for split in (made.train, made.val):
        places = np.asarray(split.document_starts)[:, None] + np.arange(len(start))
        assert (split.tokens[places] == start).all()


def test_a_run_reads_the_start_before_a_prompt_of_one_text_and_of_several():
    run = run_of(gpt(), BYTES, corpus="tales")
    steps = list(run.stream("Once", GREEDY, 6))
    typed = list(run_of(run.model, BYTES).stream("\nOnce", GREEDY, 6))
    assert [step.token for step in steps] == [step.token for step in typed]
    assert steps[0].statistics.prompt_tokens == len("\nOnce")
    batch = [*run.stream("Once", SamplerConfig(temp=0.0, seed=5), 6, count=2)]
    assert [step.token for step in batch if step.number == 1] == [step.token for step in steps]
    assert [step.statistics.seed for step in batch[:2]] == [5, 6]


def test_the_loss_counts_the_tokens_of_the_text_and_not_the_start():
    model, tokens = gpt(), [10, 65, 66]
    logits = np.array(model(mx.array([tokens])), np.float64)[0]
    nats = [np.log(np.exp(row).sum()) - row[t] for row, t in zip(logits, tokens[1:], strict=False)]
    plain, story = run_of(model, BYTES), run_of(model, BYTES, corpus="tales")
    assert text_loss(plain, tokens) == text_loss(story, tokens[1:])
    assert text_loss(plain, tokens) == pytest.approx(np.mean(nats), abs=1e-5)
    assert text_loss(story, tokens[1:2]) == pytest.approx(nats[0], abs=1e-5)
    assert math.isnan(text_loss(plain, [65]))
