from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
import pytest
from mlx.utils import tree_map

from mlx_attn.arrays import Arrays, named_arrays
from mlx_attn.attention.catalog import find_variant
from mlx_attn.machine import operations, streams
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT
from mlx_attn.training.batches import Objective
from mlx_attn.training.config import TrainConfig
from mlx_attn.training.optimizers import AdamW, GroupedOptimizer, Muon, learning_rate_factor
from mlx_attn.training.step import TrainStep

HEADS, WIDTH = 4, 8


def tiny(variant: str = "standard", **changes) -> GPT:
    sizes = {"vocab_size": 11, "context_length": 6, "emb_dim": WIDTH, "n_heads": HEADS}
    return GPT(GPTConfig(**{**sizes, "n_layers": 2, **find_variant(variant).settings, **changes}))


def recipe(**changes) -> TrainConfig:
    return TrainConfig(**{"steps": 10, "lr": 0.01, **changes})


def grouped(model: GPT, **changes) -> GroupedOptimizer:
    optimizer = GroupedOptimizer(model, recipe(**changes))
    optimizer.schedule(1.0)
    return optimizer


def moved(model: GPT, gradient: float, **changes) -> dict[str, np.ndarray]:
    """How far one step with this gradient everywhere moves each parameter."""
    before = {n: np.array(a) for n, a in named_arrays(model).items()}
    gradients = tree_map(lambda p: mx.full(p.shape, gradient), model.trainable_parameters())
    grouped(model, clip=0.0, **changes).step(gradients)
    return {n: np.array(a) - before[n] for n, a in named_arrays(model).items()}


@pytest.mark.parametrize("decay", ["matrices", "all"])
def test_matrices_decay_and_norms_and_biases_only_if_all_do(decay):
    model = tiny(bias=True, qkv_bias=True, short_conv="linear")
    arrays = named_arrays(model)
    for name, change in moved(model, 0.0, weight_decay=0.5, decay=decay).items():
        decays = decay == "all" or arrays[name].ndim >= 2
        assert bool(np.abs(change).max() > 0) == (decays and bool(arrays[name].any())), name


def test_the_product_of_queries_and_keys_learns_at_a_rate_of_its_own():
    changes = moved(tiny("merged", qkv_bias=True), 3.0, lr=0.01)
    assert np.allclose(changes["trf_blocks.1.att.S.weight"], -0.01 / HEADS, atol=1e-6)
    assert np.allclose(changes["trf_blocks.1.att.S.bias"], -0.01 / HEADS, atol=1e-6)
    assert np.allclose(changes["trf_blocks.1.att.W_value.weight"], -0.01, atol=1e-6)


@pytest.mark.parametrize("variant", ["standard", "merged"])
def test_muon_moves_the_blocks_matrices_and_nothing_else(variant):
    model = tiny(variant, bias=True)
    matrices = [name for name, array in named_arrays(model.trf_blocks).items() if array.ndim == 2]
    layer: Any = model.trf_blocks[0].att  # with what a user's choice may add
    layer.table, layer.head_weight = nn.Embedding(5, HEADS), mx.eye(HEADS)
    groups = grouped(model, optimizer="muon").groups
    assert sorted(groups["hidden"].views()) == [f"trf_blocks.{name}" for name in sorted(matrices)]


def test_every_parameter_belongs_to_one_group_whose_peak_the_schedule_scales():
    model = tiny("merged", bias=True, qkv_bias=True)
    optimizer = grouped(model, optimizer="muon", muon_lr=0.2, lr=0.04)
    names = [name for group in optimizer.groups.values() for name in group.views()]
    assert sorted(names) == sorted(named_arrays(model))
    optimizer.schedule(0.5)
    rates = {name: float(group.state["learning_rate"]) for name, group in optimizer.groups.items()}
    assert rates == pytest.approx(
        {"hidden": 0.1, "merged bias": 0.04 / HEADS / 2, "matrices": 0.02, "rest": 0.02}
    )


@pytest.mark.parametrize(
    ("optimizer", "moment", "share", "power"),
    [("adamw", "m", 0.1, 1), ("adamw", "v", 0.01, 2), ("muon", "v", 0.05, 1)],
)
@pytest.mark.parametrize(("longest", "factor"), [(1e-3, 1e-3), (10.0, 1.0)])
def test_gradients_are_clipped_to_the_global_norm(optimizer, moment, share, power, longest, factor):
    """A moment after one step is a share of the gradient, or of its square, that it was given."""
    model = tiny()
    parameters = model.trainable_parameters()
    size = sum(array.size for array in named_arrays(parameters).values())
    gradients = tree_map(lambda p: mx.full(p.shape, size**-0.5), parameters)
    config = recipe(optimizer=optimizer, clip=longest)
    made, objective = GroupedOptimizer(model, config), Objective(np.zeros(9, np.uint16), 6)
    norm = TrainStep(made, objective, config).update(gradients)
    assert float(norm) == pytest.approx(1, rel=1e-5)
    expected = share * (factor * size**-0.5) ** power
    assert np.allclose(np.array(made.state[0][moment][0]), expected, rtol=1e-4, atol=0)


def test_the_norm_of_a_million_numbers_is_that_of_float64(monkeypatch):
    monkeypatch.setattr(operations, "on_gpu", lambda: False)
    numbers = np.random.default_rng(0).normal(size=1_000_003).astype(np.float32)
    total = float(operations.sum_of_squares(mx.array(numbers)))
    assert total == pytest.approx(np.square(numbers, dtype=np.float64).sum(), rel=1e-5)


# Many parameters at once, with the numbers of MLX's own.

SHAPES = {"a": (8, 8), "b": (24, 8), "c": (8, 24), "d": (8, 8)}


def drawn(seed: int) -> Arrays:
    random = np.random.default_rng(seed)
    return {name: mx.array(random.normal(size=shape), mx.float32) for name, shape in SHAPES.items()}


def gradients(step: int, size: float) -> Arrays:
    return {name: size * array for name, array in drawn(step).items()}


def moved_by_ours(make: Callable[[Arrays], AdamW | Muon], size: float) -> Arrays:
    optimizer = make(drawn(0))
    for step in range(1, 5):
        optimizer.step(optimizer.packed(gradients(step, size)), mx.array(1.0))
    return optimizer.views()


def moved_by_mlx(optimizer: optim.Optimizer, size: float) -> Arrays:
    parameters: Any = drawn(0)
    for step in range(1, 5):
        parameters = optimizer.apply_gradients(gradients(step, size), parameters)
    return parameters


MUON = (partial(Muon, peak=0.1, momentum=0.95), lambda: optim.Muon(0.1, weight_decay=0.0))
ADAMW = (
    partial(AdamW, peak=0.1, beta2=0.99, decay=0.1, compile="on"),
    lambda: optim.AdamW(0.1, [0.9, 0.99], weight_decay=0.1, bias_correction=True),
)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("size", [1.0, 1e-8])
@pytest.mark.parametrize("pair", [MUON, ADAMW], ids=["muon", "adamw"])
def test_the_weights_are_those_of_mlx_s_own(monkeypatch, pair: Any, threads, size):
    """Also of gradients as small as the eps that keep their norms from 0."""
    monkeypatch.setattr(streams, "cores", lambda: threads)
    ours, theirs = moved_by_ours(pair[0], size), moved_by_mlx(pair[1](), size)
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert np.allclose(ours[name], theirs[name], atol=2e-5), name


# The schedule.


def scheduled(**changes) -> TrainConfig:
    return TrainConfig(**{"steps": 100, "warmup": 10, "lr": 1.0, "min_lr": 0.1, **changes})


def factor(config: TrainConfig, step: int, seconds: float = 0.0) -> float:
    return learning_rate_factor(config, step, config.steps, seconds)


@pytest.mark.parametrize(
    ("settings", "factors"),
    [
        ({"schedule": "cosine"}, {55: (1 + 0.1) / 2, 100: 0.1}),
        ({"schedule": "wsd"}, {46: 1, 73: (1 + 0.1) / 2, 100: 0.1}),
        ({"schedule": "linear"}, {55: (1 + 0.1) / 2, 100: 0.1}),
        ({"schedule": "constant", "min_lr": 2.0}, {100: 1}),
    ],
    ids=["half of a cosine", "flat, then linear", "linear", "constant"],
)
def test_a_schedule_climbs_to_the_peak_and_then_stays_or_falls_to_min_lr(settings, factors):
    config = scheduled(**settings)
    warm_up = {0: 1 / 11, 4: 5 / 11, 9: 10 / 11, 10: 1}  # in equal steps, from above zero
    factors = {**warm_up, **factors}
    assert {step: factor(config, step) for step in factors} == pytest.approx(factors)


def test_the_budget_that_is_nearer_to_its_end_moves_the_schedule():
    minutes, both = scheduled(steps=0, minutes=2.0), scheduled(minutes=1.0)
    assert factor(minutes, 500, seconds=60.0) == pytest.approx(0.55)
    assert factor(minutes, 500, seconds=120.0) == pytest.approx(0.1)
    assert factor(both, 20, seconds=60.0) == pytest.approx(0.1)
    assert factor(both, 100, seconds=1.0) == pytest.approx(0.1)
