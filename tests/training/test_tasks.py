"""A task is trained and validated only on its scored tokens."""

import math
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mlx_attn.errors import ConfigError
from mlx_attn.model.gpt import GPT
from mlx_attn.run_directory import Run
from mlx_attn.text.corpus import Corpus, prepare
from mlx_attn.text.tasks import RECIPE
from mlx_attn.training.batches import window_losses
from mlx_attn.training.config import resolve
from mlx_attn.training.evaluation import Evaluator
from mlx_attn.training.forecast import forecast
from mlx_attn.training.recording import write_sample
from mlx_attn.training.trainer import Trainer

SMALL = {"emb_dim": 16, "n_heads": 2, "n_layers": 1, "batch_size": 4, "steps": 3, "warmup": 1}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    return prepare("copy", directory=tmp_path_factory.mktemp("data"))


def trainer(corpus: Corpus, **settings) -> Trainer:
    return Trainer(resolve({"data": "copy"}, SMALL, settings), corpus)


def test_the_loss_is_the_mean_over_scored_tokens(corpus):
    made = trainer(corpus, start="book")
    starts = np.array(made.sampler.starts(0, 0))
    assert set((starts % 65).tolist()) == {0}  # windows start with documents
    places = starts[:, None] + np.arange(66)
    losses = window_losses(made.model, mx.array(corpus.train.tokens[places]))
    assert corpus.train.scored is not None
    scored = corpus.train.scored[places[:, 1:]]
    expected = (np.array(losses) * scored).sum() / scored.sum()
    assert float(made.launch_step()[0]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("windows", ["random", "epochs"])
def test_a_context_that_holds_no_document_is_refused(corpus, windows):
    with pytest.raises(ConfigError, match=r"too short .* 65 tokens: use --context-length 65"):
        trainer(corpus, context_length=64, windows=windows)
    trainer(corpus, context_length=130, windows="epochs")
    with pytest.raises(ConfigError, match=r"100 cuts through documents of 65 tokens"):
        trainer(corpus, context_length=100, windows="epochs")
    text = replace(corpus, train=replace(corpus.train, scored=None))
    trainer(text, context_length=100, windows="epochs")


def test_a_large_model_on_a_task_is_measured_on_parts_of_documents(corpus, monkeypatch):
    monkeypatch.setattr("mlx_attn.training.forecast._WORK", 1e4)
    assert forecast(trainer(corpus)).step_seconds > 0


class Clairvoyant(GPT):
    """A model that predicts every token but the last."""

    def head(self, x):
        return x

    def features(self, tokens, caches=None):
        following = mx.roll(tokens, -1, 1)
        return 50.0 * (following[..., None] == mx.arange(self.config.vocab_size))


def test_validation_counts_scored_tokens_in_nats_and_answers_as_right_or_wrong(corpus):
    untrained = trainer(corpus).model
    models = untrained, Clairvoyant(untrained.config)
    results = [Evaluator(corpus.val, 65)(model) for model in models]
    for result in results:
        assert result.bits_per_byte is None
        assert result.above_floor == pytest.approx(result.val_loss - 31 * math.log(32) / 63)
        assert sum(result.abilities.values()) == pytest.approx(result.above_floor)
        assert list(result.abilities) == ["context", "answer"]
    assert results[0].accuracy is not None
    assert 0 <= results[0].accuracy < 0.1
    assert (results[1].accuracy, results[1].val_loss) == (1, pytest.approx(0, abs=1e-6))


def test_a_sample_has_the_right_answer_beside_each_wrong_one(corpus):
    made, tokens = trainer(corpus, start="book"), np.array(corpus.val.tokens[:65])
    guesses = np.array(made.model(mx.array(tokens[None])).argmax(-1))[0, 32:64]
    tokens[-1] = guesses[-1]  # the last answer is right now
    made.corpus = replace(corpus, val=replace(corpus.val, tokens=tokens))
    pairs, text = zip(guesses, tokens[33:64], strict=False), corpus.tokenizer.decode
    wrong = [f"{text([guess])}[{text([token]).strip()}]" for guess, token in pairs]
    expected = "".join([text(tokens[:33]), *wrong, text(tokens[64:])])
    assert write_sample(Run(Path("x"), {}), made) == expected.strip()


def test_a_task_brings_its_recipe_and_anything_said_wins_over_it():
    settings = resolve({"data": "recall"}, {"steps": 7})
    assert settings.preset == "recall"
    assert settings.training.steps == 7
    assert settings.text.tokenizer == "symbols"
    assert settings.training.optimizer == RECIPE["optimizer"]
    assert settings.model["context_length"] == 33
    # A named preset keeps its own recipe, but its context holds a document.
    preset = resolve({"data": "copy", "preset": "macbook"})
    assert (preset.model["context_length"], preset.training.steps) == (65, 2000)
