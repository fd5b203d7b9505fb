"""A converted run is a run."""

import json
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlx_attn.arrays import named_arrays
from mlx_attn.attention.catalog import choice, choice_of
from mlx_attn.convert import measure
from mlx_attn.convert.measure import convert_run, measure_model, measure_ranks
from mlx_attn.convert.model import starting_point
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.model.gpt import GPT
from mlx_attn.run_directory import open_run
from mlx_attn.text.corpus import prepare
from mlx_attn.training.config import settings_from
from mlx_attn.training.evaluation import Evaluator
from mlx_attn.training.trainer import Trainer
from tests.runs import create_run


def test_the_new_run_holds_the_converted_model(run, corpus, tmp_path):
    new, outcome = convert_run(run, "merged", tmp_path / "new", corpus)
    opened = open_run(new.path)
    assert opened.load_model().config.score == "merged"
    assert opened.load_tokenizer().vocab_size == corpus.tokenizer.vocab_size
    assert opened.settings["variant"] == outcome.after.variant == "merged"
    assert opened.settings["training"] == run.settings["training"]
    assert opened.settings["converted"]["from"] == str(run.path)


@pytest.mark.parametrize("fold_norm", [False, True])
def test_the_outcome_says_what_changed_from_the_model_as_it_was(run, corpus, tmp_path, fold_norm):
    _, outcome = convert_run(run, "merged-both", tmp_path / "new", corpus, fold_norm=fold_norm)
    assert outcome.logits.logit_difference < 1e-5
    assert abs(outcome.loss_change) < 1e-6
    assert outcome.score_error < 1e-6
    assert outcome.after.cache_bytes_per_token == outcome.before.cache_bytes_per_token / 2
    removed = json.loads(json.dumps(outcome.record()))["weights_removed"]
    assert removed == outcome.before.params - outcome.after.params < 0


@pytest.mark.parametrize("to", ["merged", "no-out-proj"])
def test_training_goes_on_from_the_new_run(run, corpus, tmp_path, to):
    new, outcome = convert_run(run, to, tmp_path / "new", corpus)
    trainer = Trainer(settings_from(new.settings, {}), corpus)
    trainer.resume(new)
    assert trainer.progress.step == 0
    assert trainer.progress.best
    assert trainer.progress.best.val_loss == outcome.after.val_loss
    assert trainer.evaluator(trainer.model).val_loss == pytest.approx(
        outcome.after.val_loss, abs=1e-6
    )
    loss, _ = trainer.launch_step()
    assert float(np.array(loss)) < 3


@pytest.fixture
def pretends(own_rows):
    """A score map that is affine with the weights of the trial, and not with the model's."""
    separate = choice_of("score", "separate")

    @choice("score", "pretends", "", weights=separate.weights, shape=separate.shape)
    def pretends(a: Any, x: mx.array) -> tuple[mx.array, mx.array]:
        q, k = separate.apply(a, x)
        return mx.where(abs(a.W_query.weight).max() > 1.5, abs(q), q), k


def test_a_conversion_by_matrices_that_a_map_does_not_have_is_refused(
    pretends, settings_of, corpus, tmp_path
):
    settings = settings_of(score="pretends", start="gpt2")
    model = GPT(settings.model_config(corpus.tokenizer.vocab_size))
    model.load_weights(
        [(n, 3 * a if "W_query" not in n else 40 * a) for n, a in named_arrays(model).items()]
    )
    record = settings.record(model.config, digest=corpus.digest)
    run = create_run(tmp_path / "run", record, tokenizer=corpus.tokenizer)
    run.save_model(model)
    with pytest.raises(
        ConfigError, match=r"matrices of every head to \S+e-.*, and yet logits that"
    ):
        convert_run(run, "merged", tmp_path / "new", corpus)
    assert not (tmp_path / "new").exists()


def test_another_text_than_that_of_the_run_is_refused(run, corpus, tmp_path):
    text = tmp_path / "other.txt"
    text.write_text("another text altogether, and long enough. " * 20)
    with pytest.raises(RunError, match="was trained on another text"):
        convert_run(run, "merged", tmp_path / "new", prepare(str(text), directory=tmp_path))


def test_a_large_model_is_measured_on_a_beginning_of_the_text(run, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "_VALIDATION_WORK", 50)
    places, marks = np.array([0, 49, 50]), np.arange(len(corpus.val.tokens)) % 2
    val = replace(corpus.val, document_starts=places, scored=marks, floor_nats=1.0)
    part = measure.validation_part(replace(corpus, val=val), 1)
    assert (len(part.tokens), part.n_bytes, part.n_scored, part.floor) == (50, 50, 25, None)
    assert np.asarray(part.document_starts).tolist() == [0, 49]
    new, _ = convert_run(run, "merged", tmp_path / "new", corpus)
    assert "val_loss" not in new.settings["converted"]


def test_each_rank_is_reported_with_its_loss_size_and_cache(run, corpus):
    seen = []
    curve = measure_ranks(run, "separate", (8, 2), corpus, lambda *done: seen.append(done))
    assert seen == [(8, 1), (2, 2)]
    assert list(curve.points) == [8, 2]
    (whole, _), (cut, error) = curve.points.values()
    assert whole == curve.original
    assert whole == measure_model(run.load_model(), Evaluator(corpus.val, 32))
    assert cut.val_loss > whole.val_loss
    assert error > 0.01
    # Per layer, four keys of 2 and four values of 8, four bytes each.
    assert cut.cache_bytes_per_token == 2 * 4 * (2 + 8) * 4
    # Per layer, query and key of four heads lose 6 of 8 rows and as many biases.
    assert whole.params - cut.params == 2 * 2 * 4 * 6 * (32 + 1)


@pytest.mark.parametrize("qkv_bias", [False, True])
@pytest.mark.parametrize("output", ["linear", "merged"])
@pytest.mark.parametrize("score", ["separate", "merged"])
def test_a_training_that_starts_from_a_model_begins_with_its_loss(
    trained, settings_of, corpus, score, output, qkv_bias
):
    source = trained(qkv_bias=qkv_bias)
    separate = Trainer(settings_of(qkv_bias=qkv_bias), corpus)
    wanted = Trainer(settings_of(qkv_bias=qkv_bias, score=score, output=output), corpus)
    separate.start_from(source)
    wanted.start_from(starting_point(source, wanted.model.config))
    losses = [training.evaluator(training.model).val_loss for training in (separate, wanted)]
    assert losses[1] == pytest.approx(losses[0], abs=1e-6)
    first = [training.launch_step()[0].item() for training in (separate, wanted)]
    assert first[1] == pytest.approx(first[0], abs=1e-6)
