"""Where a document begins, and what is said of a text that a model cannot know."""

import math
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mlx_attn.run_directory import Run
from mlx_attn.sampling.config import SamplerConfig
from mlx_attn.sampling.documents import start_tokens, text_loss
from mlx_attn.sampling.generate import LoadedRun, stream_generate
from mlx_attn.text.characters import ByteTokenizer
from mlx_attn.text.corpus import prepare

BYTES = ByteTokenizer()
GREEDY = SamplerConfig(temp=0.0)


@pytest.fixture
def loaded(gpt):
    """A run of the corpus by name, as its directory would make it."""

    def make(corpus: str | None, **settings) -> LoadedRun:
        record = {} if corpus is None else {"corpus": corpus}
        return LoadedRun(Run(Path("x"), record), gpt(**settings), BYTES)

    return make


@pytest.mark.parametrize("corpus", ["tales", "copy"])
def test_the_start_is_what_stands_before_each_document_of_the_text(corpus, tmp_path):
    made = prepare(corpus, "byte", directory=tmp_path, n_bytes=4000, val_bytes=1000)
    start = start_tokens(made.tokenizer, corpus)
    for split in (made.train, made.val):
        places = np.asarray(split.document_starts)[:, None] + np.arange(len(start))
        assert (split.tokens[places] == start).all()


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


def test_a_text_that_costs_more_than_guessing_is_said_to_be_foreign(loaded):
    run = loaded("tales")
    run.model.out_head.weight *= 50.0  # sure of itself, and wrong
    line = run.unfamiliar("Onceupon")
    assert line.startswith("this model has only read made-up stories: your text costs it ")
    assert "guessing would cost 5.55" in line
    assert "mlx-attn train --data notes/" in line
    assert run.unfamiliar("") == ""
    # Every token is as likely: exactly what guessing costs.
    run.model.out_head.weight *= 0.0
    assert run.unfamiliar("Once") == ""
