import dataclasses
import gc
import math

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_attn.errors import ConfigError
from mlx_attn.machine import streams
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT
from mlx_attn.text.corpus import Split
from mlx_attn.training import evaluation
from mlx_attn.training.evaluation import Evaluator, evaluation_windows


class Uniform(GPT):
    """A model that finds every token equally likely."""

    def __init__(self, vocab_size: int = 10):
        super().__init__(GPTConfig(vocab_size=vocab_size, emb_dim=4, n_heads=1, n_layers=1))

    def head(self, x):
        return mx.zeros((*x.shape[:-1], self.config.vocab_size))


def token_losses(evaluator: Evaluator, model: GPT) -> np.ndarray:
    """The nats of each token but the first, given those before it."""
    return evaluator.measures(model, evaluator.windows)[1][0]


def scored(n_tokens: int, T: int, document_starts=None) -> list[int]:
    """The tokens that the windows score, in order."""
    windows = evaluation_windows(n_tokens, T, document_starts)
    assert all(w.start >= 0 and w.start + T < n_tokens for w in windows)
    assert all(0 <= w.first < w.last <= T for w in windows)
    return [w.start + 1 + i for w in windows for i in range(w.first, w.last)]


@settings(max_examples=200)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=20), st.integers(1, 40))
def test_every_token_but_the_first_is_scored_exactly_once_with_documents_or_without(lengths, T):
    starts = np.cumsum([0, *lengths[:-1]])
    n_tokens = sum(lengths) + 1
    if n_tokens > T:
        assert scored(n_tokens, T) == list(range(1, n_tokens))
        assert scored(n_tokens, T, starts) == list(range(1, n_tokens))


def test_a_document_that_fits_is_read_from_its_beginning():
    # Documents start at 0, 5, 9 and 20; the last one is longer than a window.
    windows = evaluation_windows(40, 10, np.array([0, 5, 9, 20]))
    spans = [(w.start, w.start + w.first, w.start + w.last) for w in windows]
    assert spans == [(0, 0, 9), (9, 9, 19), (19, 19, 20), (20, 20, 30), (29, 30, 39)]


def test_the_losses_of_a_uniform_model_and_the_abilities_that_add_up_to_what_is_above_the_floor():
    tokens = np.arange(50, dtype=np.uint16) % 10
    plain = Evaluator(Split(tokens, n_bytes=60), 8)(Uniform())
    assert plain.val_loss == pytest.approx(math.log(10), rel=1e-6)
    assert plain.bits_per_byte == pytest.approx(49 * math.log2(10) / 60, rel=1e-6)
    assert (plain.above_floor, plain.abilities) == (None, {})
    split = Split(
        tokens,
        n_bytes=60,
        document_starts=np.arange(0, 50, 5),
        token_abilities=(np.arange(50) % 2).astype(np.uint8),
        floor_nats=30.0,
        ability_floor_nats={"free": 30.0, "copy": 0.0, "counting": 0.0},
    )
    result = Evaluator(split, 8)(Uniform())
    nats = 49 * math.log(10)
    assert result.above_floor == pytest.approx((nats - 30) / math.log(2) / 60, rel=1e-6)
    assert sum(result.abilities.values()) == pytest.approx(result.above_floor)
    # Of the tokens 1 to 49, the odd ones.
    assert result.abilities["copy"] == pytest.approx(25 * math.log2(10) / 60)
    assert result.abilities["counting"] == 0


def test_a_text_may_be_shorter_than_the_context_but_not_a_single_token():
    assert Evaluator(Split(np.zeros(5, np.uint16), 5), 8).windows.tolist() == [(0, 0, 4)]
    with pytest.raises(ConfigError, match="validation text has 1 tokens"):
        Evaluator(Split(np.zeros(1, np.uint16), 1), 8)


def test_the_losses_are_those_of_every_window_s_tokens(trainer, corpus):
    model, tokens = trainer().model, corpus.val.tokens[:37]
    losses = token_losses(Evaluator(Split(tokens, 37), 12), model)
    logits = model(mx.array(tokens[:-1].reshape(3, 12))).reshape(36, -1)
    log_p = np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
    assert np.allclose(losses, -log_p[np.arange(36), tokens[1:]], atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_an_estimate_is_the_mean_of_what_some_windows_score_or_of_all_without_dropout(
    trainer, corpus, training
):
    model = trainer(drop_rate=0.5).model
    model.train(training)
    evaluator = Evaluator(corpus.val, 12)
    whole = evaluator(model).val_loss
    assert evaluator.estimate(model, len(evaluator.windows) + 1) == pytest.approx(whole, rel=1e-6)
    # The first and the last window; the last one skips tokens that others score.
    losses, last = token_losses(evaluator, model), evaluator.windows[-1]
    two = np.concatenate([losses[:12], losses[last.first - last.last :]])
    assert evaluator.estimate(model, 2) == pytest.approx(two.mean(), rel=1e-5)
    assert model.training is training


def test_batches_streams_and_parts_of_logits_change_no_loss(
    trainer, corpus, monkeypatch, on_processor
):
    model = trainer().model
    split = dataclasses.replace(
        corpus.val,
        token_abilities=np.arange(len(corpus.val.tokens)).astype(np.uint8) % 2,
        floor_nats=1.0,
        ability_floor_nats={"free": 1.0, "copy": 0.0},
    )
    whole = Evaluator(split, 12)(model)
    losses = token_losses(Evaluator(split, 12), model)
    monkeypatch.setattr(streams, "cores", lambda: 3)
    monkeypatch.setattr(evaluation, "LOGITS", 7 * model.config.vocab_size)
    parts = Evaluator(split, 12)
    # The last batch has fewer windows, and so fewer parts.
    windows = next(n for n in range(2, 9) if len(parts.windows) % n)
    monkeypatch.setattr(evaluation, "EVALUATION_TOKENS", windows * evaluation.cores() * 12)
    result = parts(model)
    assert result.val_loss == pytest.approx(whole.val_loss, rel=1e-6)
    assert result.above_floor == pytest.approx(whole.above_floor, rel=1e-6)
    assert result.abilities == pytest.approx(dict(whole.abilities), rel=1e-6)
    assert token_losses(parts, model) == pytest.approx(losses, rel=1e-4)


@pytest.mark.parametrize("vocab_size", [300, 40_000])
def test_a_large_vocabulary_takes_the_memory_of_few_logits(monkeypatch, no_lookahead, vocab_size):
    monkeypatch.setattr(evaluation, "LOGITS", 200_000)
    model = GPT(GPTConfig(vocab_size=vocab_size, emb_dim=8, n_heads=1, n_layers=1))
    evaluate = Evaluator(Split(np.arange(500, dtype=np.uint16) % 300, 500), 128)
    evaluate(model)
    gc.collect()
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    evaluate(model)
    taken = mx.get_peak_memory() - before
    # Six arrays of the logits' size, in float32, for each core.
    assert taken < 6 * 4 * evaluation.cores() * 200_000
