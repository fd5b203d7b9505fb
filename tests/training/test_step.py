from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mlx_attn.arrays import named_arrays
from mlx_attn.machine import streams
from mlx_attn.machine.device import forced_path
from mlx_attn.machine.streams import MOST_COPIED, shard_batch
from mlx_attn.training.batches import Objective
from mlx_attn.training.loop import train

STEPS = 6


def losses(trainer, steps: int = STEPS) -> list[float]:
    return [float(trainer.launch_step()[0]) for _ in range(steps)]


def weights(trainer) -> dict[str, np.ndarray]:
    return {name: np.array(array) for name, array in named_arrays(trainer.model).items()}


def test_the_first_loss_is_that_of_the_windows_under_the_starting_weights(trainer, corpus):
    made = trainer()
    starts = made.sampler.starts(0, 0)
    windows = mx.array(corpus.train.tokens)[starts[:, None] + mx.arange(13)]
    logits = made.model(windows[:, :-1])
    expected = nn.losses.cross_entropy(logits, windows[:, 1:].astype(mx.int32), reduction="mean")
    assert losses(made, 1)[0] == pytest.approx(float(expected), abs=1e-6)


@pytest.mark.parametrize("windows", ["random", "epochs"])
def test_micro_batches_make_the_step_of_one_batch_of_their_size(trainer, windows):
    whole = trainer(batch_size=8, windows=windows)
    parts = trainer(batch_size=2, accumulate=4, windows=windows)
    assert mx.array_equal(whole.starts(), parts.starts())
    starts = mx.array([3, 14, 15, 92, 65, 35, 89, 79])
    for made in (whole, parts):
        made.optimizer.schedule(1.0)
    (loss, norm), (part_loss, part_norm) = whole.step(starts), parts.step(starts)
    assert float(loss) == pytest.approx(float(part_loss), abs=1e-5)
    assert float(norm) == pytest.approx(float(part_norm), abs=1e-5)
    # Means of gradients: AdamW's first step is their sign, which rounding decides near 0.
    for one, other in zip(whole.optimizer.state, parts.optimizer.state, strict=True):
        assert mx.allclose(mx.concatenate(one["m"]), mx.concatenate(other["m"]), atol=1e-7)


@pytest.mark.parametrize(
    "settings",
    [
        {"drop_rate": 0.2},  # as in all tests of compiled steps: g++ takes a second for each kernel
        pytest.param({"variant": "merged", "optimizer": "muon"}, marks=pytest.mark.slow),
        pytest.param({"accumulate": 2}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_compiled_or_not_the_losses_are_the_same(trainer, settings):
    compiled, eager = (losses(trainer(compile=mode, **settings)) for mode in ("on", "off"))
    assert compiled == pytest.approx(eager, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"optimizer": "muon", "position": "alibi"}], ids=str)
def test_the_compiled_step_of_a_gpu_s_path_has_the_losses_of_a_processor_s(trainer, settings):
    expected = losses(trainer(compile="off", **settings))
    with forced_path("gpu"):
        assert losses(trainer(**settings)) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("path", ["", "gpu"])
def test_weights_that_are_set_and_read_are_those_that_the_next_step_moves(trainer, path):
    with forced_path(path):
        first, second = (trainer(seed=seed, optimizer="muon") for seed in (1, 2))
        first.step(mx.array([1, 2, 3, 4]))
        for made in (first, second):
            made.optimizer.schedule(0.0)
        first.model.update(second.model.trainable_parameters())
        next(train(first))  # which reads them
        for made in (first, second):
            made.step(mx.array([5, 6, 7, 8]))
        one, other = named_arrays(first.model), named_arrays(second.model)
    assert all(mx.array_equal(one[name], other[name]) for name in other)


@pytest.mark.parametrize("mode", ["off", pytest.param("on", marks=pytest.mark.slow)])
def test_bfloat16_computes_over_float32_weights_and_states(trainer, mode):
    made = trainer(dtype="bfloat16", compile=mode)
    computed = losses(made)
    loss, _ = made.step.gradients(made.starts())  # of a micro-batch, after which others follow
    mx.eval(made.step.state)
    arrays = [
        loss,
        *named_arrays(made.model).values(),
        *named_arrays(list(made.optimizer.state)).values(),
    ]
    kinds = {array.dtype for array in arrays if mx.issubdtype(array.dtype, mx.floating)}
    assert kinds == {mx.float32}
    exact = losses(trainer())
    assert computed == pytest.approx(exact, abs=0.05)
    assert computed != exact


def test_dropout_differs_from_step_to_step_in_each_of_its_places(trainer, monkeypatch):
    seen, drop = [], nn.Dropout.__call__

    def record(layer: nn.Dropout, x: mx.array) -> mx.array:
        seen.append((x.ndim, float((drop(layer, mx.ones(10_000)) == 0).mean())))
        return drop(layer, x)

    monkeypatch.setattr(nn.Dropout, "__call__", record)
    made = trainer(drop_rate=0.2, seed=3, compile="off")
    monkeypatch.setattr(made, "_factor", lambda done: 0.0)
    monkeypatch.setattr(made, "starts", lambda: mx.array([1, 2, 3, 4]))
    assert len({*losses(made, 3)}) == 3
    # Embeddings, attention weights, and both branches.
    assert seen == [(ndim, pytest.approx(0.2, abs=0.02)) for ndim in (3, 4, 3, 3)] * 3


@pytest.mark.parametrize("settings", [{}, {"optimizer": "muon"}, {"accumulate": 2}])
def test_the_step_is_that_of_one_stream(trainer, monkeypatch, settings):
    results = []
    for cores in (1, 2, 4):
        monkeypatch.setattr(streams, "cores", lambda count=cores: count)
        made = trainer(batch_size=6, lr=0.01, **settings)
        made.optimizer.schedule(1.0)
        starts = [3, 14, 15, 92, 65, 35] * settings.get("accumulate", 1)
        loss, norm = made.step(mx.array(starts))
        results.append(([float(loss), float(norm)], weights(made)))
    (expected, whole), *of_shares = results
    for found, parts in of_shares:
        assert found == pytest.approx(expected, rel=1e-5)
        for name, weight in whole.items():
            assert np.allclose(parts[name], weight, atol=2e-4), name


@pytest.mark.parametrize(
    ("cores", "windows", "n_weights", "sizes"),
    [
        (4, 8, 1, [2, 2, 2, 2]),
        (3, 8, 1, [2, 3, 3]),
        (3, 2, 1, [1, 1]),
        (8, 8, MOST_COPIED // 2, [4, 4]),
        (2, 8, MOST_COPIED, [8]),
    ],
    ids=[
        *("equal shares", "nearly equal shares", "one window each"),
        *("gradients of a large model are held twice", "those of a larger one once"),
    ],
)
def test_shares_differ_by_a_window_at_most(monkeypatch, cores, windows, n_weights, sizes):
    monkeypatch.setattr(streams, "cores", lambda: cores)
    found = []

    def gradients(batch: list[mx.array], weight: Any = 1.0) -> tuple[mx.array, dict]:
        found.append(len(batch[0]))
        return mx.array(0.0), {}

    shard_batch(gradients, lambda batch: mx.array(1.0), n_weights)([mx.zeros((windows, 3))])
    assert found == sizes


def test_shares_weigh_what_they_score():
    """Two windows of which one has a single scored token, the other three."""
    objective = Objective(np.zeros(9, np.uint16), 4, np.zeros(9, np.uint16))
    windows = mx.array([[0, 1, 2, 3, 4], [4, 3, 2, 1, 0]])
    scored = mx.array([[0, 0, 0, 1], [1, 0, 1, 1]])
    halves = [(windows[i : i + 1], scored[i : i + 1]) for i in range(2)]

    def model(tokens: mx.array) -> mx.array:
        return mx.random.normal((1, 4, 5), key=mx.random.key(1)) * tokens[..., None]

    weights = [float(objective.weight(half)) for half in halves]
    losses = [float(objective.loss(model, half)) for half in halves]
    assert weights == [1, 3]
    whole = objective.loss(model, (windows, scored))
    assert np.average(losses, weights=weights) == pytest.approx(float(whole), rel=1e-6)
