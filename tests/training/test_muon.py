"""Muon and AdamW move many parameters at once and give the numbers of MLX's own."""

from collections.abc import Callable

import mlx.core as mx
import mlx.optimizers as optim
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_attn.arrays import named_arrays
from mlx_attn.machine import streams
from mlx_attn.training.optimizers import AdamW, Muon, flatten, newton_schulz, unflatten

SHAPES = {"a": (8, 8), "b": (24, 8), "c": (8, 24), "d": (8, 8)}


def tree(seed: int) -> dict:
    keys = mx.random.split(mx.random.key(seed), len(SHAPES))
    drawn = [
        mx.random.normal(shape, key=key) for shape, key in zip(SHAPES.values(), keys, strict=True)
    ]
    return {"a": drawn[0], "block": [{"b": drawn[1], "c": drawn[2]}, {"d": drawn[3]}]}


def trained(optimizer: optim.Optimizer, steps: int = 4) -> dict[str, np.ndarray]:
    parameters = named_arrays(tree(0))
    if isinstance(optimizer, Muon | AdamW):
        optimizer.init({str(i): a for i, a in enumerate(optimizer.packed(parameters))})
        parameters = optimizer.hold(parameters) if isinstance(optimizer, AdamW) else parameters
    else:
        optimizer.init(parameters)
    for step in range(steps):
        gradients = named_arrays(tree(step + 1))
        if isinstance(optimizer, Muon | AdamW):
            packed = optimizer.packed(gradients)
            parameters = optimizer.updated(packed, parameters, mx.array(1.0))
        else:
            parameters = optimizer.apply_gradients(gradients, parameters)
    return {name: np.array(array) for name, array in parameters.items()}


MUON = (lambda: Muon(0.1), lambda: optim.Muon(0.1, weight_decay=0.0))
ADAMW = tuple(
    lambda kind=kind: kind(0.1, [0.9, 0.99], weight_decay=0.1, bias_correction=True)
    for kind in (AdamW, optim.AdamW)
)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("pair", [MUON, ADAMW], ids=["muon", "adamw"])
def test_the_weights_are_those_of_mlx_s_own(monkeypatch, pair: tuple[Callable, Callable], threads):
    monkeypatch.setattr(streams, "cores", lambda: threads)
    ours, theirs = (trained(make()) for make in pair)
    assert list(ours) == list(theirs)
    for name in ours:
        assert np.allclose(ours[name], theirs[name], atol=2e-5), name


@settings(max_examples=20)
@given(st.integers(2, 10), st.integers(2, 10), st.integers(0, 99))
def test_singular_values_come_near_one(rows, columns, seed):
    if rows > columns:
        rows, columns = columns, rows
    matrix = mx.random.normal((rows, columns), key=mx.random.key(seed))
    before = np.linalg.svd(np.array(matrix), compute_uv=False)
    after = np.linalg.svd(np.array(newton_schulz(matrix[None])[0]), compute_uv=False)
    assert after.max() < 1.3
    assert after[before > 0.02 * before.sum()].min() > 0.5


def test_nothing_becomes_nothing():
    assert not np.array(newton_schulz(mx.zeros((2, 3, 4)))).any()


def test_parts_are_what_was_joined():
    arrays = named_arrays(tree(3))
    parts = unflatten(flatten(arrays), arrays)
    assert list(parts) == list(arrays)
    for name, array in arrays.items():
        assert np.array_equal(np.array(parts[name]), np.array(array))
