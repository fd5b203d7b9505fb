"""Shares of a batch make the step of the whole batch."""

import mlx.core as mx
import numpy as np
import pytest

from mlx_attn.arrays import named_arrays
from mlx_attn.machine import streams
from mlx_attn.machine.exponentials import cross_entropy
from mlx_attn.training.batches import ScoredTokens, token_source
from mlx_attn.training.evaluation import Evaluator
from mlx_attn.training.step import MOST_COPIED, shard_batch


def stepped(trainer, monkeypatch, cores: int, **settings):
    monkeypatch.setattr(streams, "cores", lambda: cores)
    made = trainer(batch_size=6, lr=0.01, **settings)
    made.optimizer.schedule(1.0)
    mx.random.seed(0)
    loss, norm = made.step(mx.array([3, 14, 15, 92, 65, 35] * settings.get("accumulate", 1)))
    weights = {name: np.array(array) for name, array in named_arrays(made.model).items()}
    return float(loss), float(norm), weights


@pytest.mark.parametrize("settings", [{}, {"optimizer": "muon"}, {"accumulate": 2}])
def test_the_step_is_that_of_one_stream(trainer, monkeypatch, settings):
    loss, norm, weights = stepped(trainer, monkeypatch, 1, **settings)
    for cores in (2, 3):
        of_shares = stepped(trainer, monkeypatch, cores, **settings)
        assert of_shares[:2] == pytest.approx((loss, norm), rel=1e-5)
        for name, weight in weights.items():
            assert np.allclose(of_shares[2][name], weight, atol=2e-4), name


def sizes_of_shares(monkeypatch, cores: int, windows: int, n_weights: int = 1) -> list[int]:
    monkeypatch.setattr(streams, "cores", lambda: cores)
    sizes = []

    def gradients(batch: mx.array, weight: float | mx.array = 1.0) -> tuple[mx.array, dict]:
        sizes.append(len(batch))
        return mx.array(0.0), {}

    shard_batch(gradients, lambda batch: mx.array(1.0), n_weights)(mx.zeros((windows, 3), mx.int32))
    return sizes


@pytest.mark.parametrize(
    ("cores", "windows", "n_weights", "sizes"),
    [(4, 8, 1, [2, 2, 2, 2]), (4, 7, 1, [7]), (2, 8, MOST_COPIED, [8])],
    ids=["equal shares", "no equal shares", "gradients of a large model are held once"],
)
def test_shares_are_equal_or_the_batch_stays_whole(monkeypatch, cores, windows, n_weights, sizes):
    assert sizes_of_shares(monkeypatch, cores, windows, n_weights) == sizes


def test_shares_weigh_what_they_score():
    """Two windows of which one has a single scored token, the other three."""
    objective = ScoredTokens(*(token_source(np.zeros(9, np.uint16), 4, 1) for _ in range(2)))
    windows = mx.array([[0, 1, 2, 3, 4], [4, 3, 2, 1, 0]])
    scored = mx.array([[0, 0, 0, 1], [1, 0, 1, 1]])
    halves = [(windows[i : i + 1], scored[i : i + 1]) for i in range(2)]

    def model(tokens: mx.array) -> mx.array:
        return mx.random.normal((*tokens.shape, 5), key=mx.random.key(1)) * tokens[..., None]

    weights = [float(objective.weight(half)) for half in halves]
    parts = [
        w * float(objective.loss(model, half)) for w, half in zip(weights, halves, strict=True)
    ]
    one_draw = mx.random.normal((1, 4, 5), key=mx.random.key(1))
    whole = objective.loss(lambda tokens: one_draw * tokens[..., None], (windows, scored))
    assert weights == [1, 3]
    assert sum(parts) / sum(weights) == pytest.approx(float(whole), rel=1e-6)


def test_dropout_is_repeatable(trainer, monkeypatch):
    runs = [stepped(trainer, monkeypatch, 2, drop_rate=0.3, seed=5) for _ in range(2)]
    assert runs[0][:2] == runs[1][:2]


def test_a_validation_on_several_streams_is_that_of_one(trainer, corpus, monkeypatch):
    model, losses = trainer().model, []
    for cores in (1, 3):
        monkeypatch.setattr("mlx_attn.training.evaluation.cores", lambda count=cores: count)
        monkeypatch.setattr("mlx_attn.training.evaluation.EVALUATION_TOKENS", 40)
        spans = Evaluator(corpus.val, 12)._spans(model, cross_entropy)
        losses.append(np.concatenate([measured for _, measured in spans]))
    assert np.array_equal(losses[0], losses[1])
