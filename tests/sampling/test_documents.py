"""Where a document begins, and what is said of a text that a model cannot know."""

import math
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mlx_attn.run_directory import Run
from mlx_attn.sampling.config import SamplerConfig
from mlx_attn.sampling.documents import begin, document_ends, start_tokens, text_loss
from mlx_attn.sampling.generate import LoadedRun, prompt_tokens, stream_generate
from mlx_attn.text.characters import ByteTokenizer, CharacterTokenizer, SymbolTokenizer
from mlx_attn.text.corpus import prepare

BYTES = ByteTokenizer()
GREEDY = SamplerConfig(temp=0.0)
NEWLINE = [10]


@pytest.fixture
def loaded(gpt):
    """A run of the corpus by name, as its directory would make it."""

    def make(corpus: str | None, **settings) -> LoadedRun:
        record = {} if corpus is None else {"corpus": corpus}
        return LoadedRun(Run(Path("x"), record), gpt(**settings), BYTES)

    return make


@pytest.mark.parametrize(
    ("corpus", "start"),
    [
        ("tales", "\n"),
        ("recall", "\n"),
        ("tinystories", "<|endoftext|>\n"),
        ("tiny-shakespeare", ""),
        ("book.txt", ""),
    ],
)
def test_documents_begin_as_they_did_in_training(corpus, start):
    assert start_tokens(BYTES, corpus) == list(start.encode())


@pytest.mark.parametrize("corpus", ["tales", "copy"])
def test_the_start_is_what_stands_before_each_document_of_the_text(corpus, tmp_path):
    made = prepare(corpus, "byte", directory=tmp_path, n_bytes=4000, val_bytes=1000)
    start = start_tokens(made.tokenizer, corpus)
    for split in (made.train, made.val):
        places = np.asarray(split.document_starts)[:, None] + np.arange(len(start))
        assert (split.tokens[places] == start).all()


@pytest.mark.parametrize(
    ("tokens", "begun"),
    [([65], [10, 65]), ([10, 65], [10, 65]), ([65] * 8, [65] * 8)],
    ids=["is given the start", "has it", "leaves no room for it"],
)
def test_a_text_begins_with_the_start_once(tokens, begun):
    assert begin(tokens, NEWLINE, 8) == begun


def test_the_start_is_that_of_the_vocabulary_and_of_the_task():
    assert start_tokens(CharacterTokenizer.train("abc"), "tales") == []
    tokenizer = SymbolTokenizer(["a", "b"])
    assert prompt_tokens(tokenizer, "a b", start_tokens(tokenizer, "copy"), 8) == [0, 1, 2]


def test_a_run_reads_the_start_before_a_prompt_of_one_text_and_of_several(loaded):
    run = loaded("tales")
    steps = list(run.stream("Once", GREEDY, 6))
    typed = list(stream_generate(run.model, BYTES, "\nOnce", GREEDY, 6))
    assert [step.token for step in steps] == [step.token for step in typed]
    assert steps[0].statistics.prompt_tokens == len("\nOnce")
    batch = [step.token for k, step in run.stream_batch("Once", 2, GREEDY, 6) if k == 1]
    assert batch == [step.token for step in steps]
    assert loaded(None).start_tokens == []


def test_the_loss_counts_the_tokens_of_the_text_and_not_the_start(gpt):
    model, tokens = gpt(), [10, 65, 66]
    logits = np.array(model(mx.array([tokens])), np.float64)[0]
    nats = [np.log(np.exp(row).sum()) - row[t] for row, t in zip(logits, tokens[1:], strict=False)]
    assert text_loss(model, tokens, 2) == pytest.approx(np.mean(nats), abs=1e-5)
    assert text_loss(model, tokens, 1) == pytest.approx(nats[1], abs=1e-5)
    assert math.isnan(text_loss(model, [65], 1))


@pytest.mark.parametrize(
    ("corpus", "words"),
    [("tales", "made-up stories"), ("notes/book.txt", "book.txt"), ("", "another text")],
)
def test_a_text_that_costs_more_than_guessing_is_said_to_be_foreign(corpus, words, loaded):
    run = loaded(corpus)
    run.model.out_head.weight *= 50.0  # sure of itself, and wrong
    line = run.unfamiliar("Onceupon")
    assert line.startswith(f"this model has only read {words}: your text costs it ")
    assert "guessing would cost 5.55" in line
    assert "mlx-attn train --data notes/" in line
    assert "\n" not in line


@pytest.mark.parametrize(("text", "certainty"), [("", 50.0), ("Z", 50.0), ("Once", 0.0)])
def test_a_text_without_a_loss_or_that_the_model_expects_is_not_judged(text, certainty, loaded):
    """With a certainty of 0 every token is as likely: exactly what guessing costs."""
    run = loaded("book.txt")
    run.model.out_head.weight *= certainty
    assert run.unfamiliar(text) == ""


def test_a_document_ends_where_the_corpus_and_the_tokenizer_say():
    def ends(corpus: str, end_of_text: str = "") -> tuple[str, ...]:
        tokenizer = ByteTokenizer()
        tokenizer.end_of_text = end_of_text
        return document_ends(tokenizer, corpus)

    assert ends("tales") == ends("recall") == ("\n",)
    assert ends("tinystories", "<|endoftext|>") == ("<|endoftext|>",)
    assert ends("book.txt") == ()
