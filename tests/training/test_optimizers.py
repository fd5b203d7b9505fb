from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx.utils import tree_map

from mlx_attn.arrays import named_arrays
from mlx_attn.attention.config import find_variant
from mlx_attn.errors import ConfigError
from mlx_attn.machine import streams
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT
from mlx_attn.training.config import CHOICES, TrainConfig
from mlx_attn.training.optimizers import (
    AdamW,
    GroupedOptimizer,
    Muon,
    newton_schulz,
)
from mlx_attn.training.trainer import learning_rate_factor

HEADS, WIDTH = 4, 8


def tiny(variant: str = "standard", **changes) -> GPT:
    sizes = {"vocab_size": 11, "context_length": 6, "emb_dim": WIDTH, "n_heads": HEADS}
    return GPT(GPTConfig(**{**sizes, "n_layers": 2, **find_variant(variant).settings, **changes}))


def recipe(**changes) -> TrainConfig:
    return TrainConfig(**{"steps": 10, "lr": 0.01, **changes})


def grouped(model: nn.Module, **changes) -> GroupedOptimizer:
    optimizer = GroupedOptimizer(model, recipe(**changes), HEADS, WIDTH)
    optimizer.schedule(1.0)
    return optimizer


def moved(model: GPT, gradient: float, **changes) -> dict[str, np.ndarray]:
    """How far one step with this gradient everywhere moves each parameter."""
    before = {n: np.array(a) for n, a in named_arrays(model).items()}
    gradients = tree_map(lambda p: mx.full(p.shape, gradient), model.trainable_parameters())
    grouped(model, **changes).update(model, gradients)
    return {n: np.array(a) - before[n] for n, a in named_arrays(model).items()}


def test_adamw_is_the_paper_s_with_bias_correction():
    """Loshchilov and Hutter, arXiv:1711.05101, algorithm 2, in NumPy and float64."""
    lr, beta1, beta2, decay = 0.01, 0.9, 0.99, 0.1
    layer = nn.Linear(3, 2, bias=False)
    weight = np.array(layer.weight).astype(np.float64)
    m = v = np.zeros_like(weight)
    optimizer = grouped(layer, lr=lr, beta1=beta1, beta2=beta2, weight_decay=decay)
    generator = np.random.default_rng(0)
    for t in range(1, 6):
        g = generator.normal(size=weight.shape)
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
        step = m / (1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + 1e-8)
        weight = weight - lr * (step + decay * weight)
        optimizer.update(layer, {"weight": mx.array(g.astype(np.float32))})
    assert np.allclose(np.array(layer.weight), weight, atol=1e-6)


@pytest.mark.parametrize("decay", ["matrices", "all"])
def test_matrices_decay_and_norms_and_biases_only_if_all_do(decay):
    model = tiny(bias=True, qkv_bias=True)
    arrays = named_arrays(model)
    for name, change in moved(model, 0.0, weight_decay=0.5, decay=decay).items():
        decays = decay == "all" or arrays[name].ndim >= 2
        assert bool(np.abs(change).max() > 0) == (decays and bool(arrays[name].any())), name


@pytest.mark.parametrize(("merged_lr", "rate"), [(0.0, 0.01 / HEADS), (0.5, 0.005)])
def test_s_learns_at_the_rate_divided_by_the_number_of_heads_or_at_its_own(merged_lr, rate):
    changes = moved(tiny("merged"), 3.0, lr=0.01, merged_lr=merged_lr)
    assert np.allclose(changes["trf_blocks.1.att.S.weight"], -rate, atol=1e-6)
    assert np.allclose(changes["trf_blocks.1.att.W_value.weight"], -0.01, atol=1e-6)


@pytest.mark.parametrize(("variant", "matrix"), [("standard", "W_query"), ("merged", "S")])
def test_queries_and_keys_may_learn_at_a_rate_of_their_own(variant, matrix):
    changes = moved(tiny(variant), 3.0, lr=0.01, merged_lr=1.0, query_key_lr=0.5)
    assert np.allclose(changes[f"trf_blocks.1.att.{matrix}.weight"], -0.005, atol=1e-6)
    assert np.allclose(changes["trf_blocks.1.att.W_value.weight"], -0.01, atol=1e-6)


@pytest.mark.parametrize("variant", ["standard", "merged", "no-query"])
def test_muon_takes_the_rate_of_queries_and_keys_too(variant):
    optimizer = grouped(tiny(variant), optimizer="muon", query_key_lr=2.0)
    names = {name: group.peak for group in optimizer.groups for name in group.parameters}
    matrices = {"standard": {"W_query", "W_key"}, "merged": {"S"}, "no-query": {"W_key"}}[variant]
    assert {name.split(".")[-2] for name, peak in names.items() if peak == 0.04} == matrices


def test_with_a_base_width_matrices_that_multiply_learn_at_a_rate_of_their_width():
    changes = moved(tiny("merged"), 3.0, lr=0.01, base_width=2)
    expected = {
        **dict.fromkeys(("trf_blocks.0.att.W_value.weight", "out_head.weight"), -0.01 * 2 / WIDTH),
        **dict.fromkeys(("tok_emb.weight", "pos_emb.weight", "final_norm.weight"), -0.01),
        "trf_blocks.1.att.S.weight": -0.01 / HEADS * 2 / WIDTH,
    }
    for name, change in expected.items():
        assert np.allclose(changes[name], change, rtol=1e-3), name


def test_the_factors_of_s_can_decay_alone_where_there_are_any():
    changes = moved(tiny(), 0.0, lr=0.1, weight_decay=0.5, decay="query-key")
    decayed = {name for name, change in changes.items() if change.any()}
    assert decayed == {
        f"trf_blocks.{i}.att.{matrix}.weight" for i in range(2) for matrix in ("W_query", "W_key")
    }
    with pytest.raises(ConfigError, match="neither W_query nor W_key to decay"):
        grouped(tiny("merged"), weight_decay=0.5, decay="query-key")


@pytest.mark.parametrize("variant", ["standard", "merged"])
def test_muon_moves_the_blocks_matrices_and_nothing_else(variant):
    made = grouped(tiny(variant, bias=True), optimizer="muon").groups
    groups = {group.name: {*group.parameters} for group in made}
    hidden = groups.pop("hidden")
    assert hidden
    assert all(n.startswith("trf_blocks.") and n.endswith("weight") for n in hidden)
    assert not any("norm" in name or "emb" in name or "head" in name for name in hidden)
    others = set[str]().union(*groups.values())
    assert {"tok_emb.weight", "out_head.weight", "pos_emb.weight"} <= others


def test_every_parameter_belongs_to_exactly_one_group_and_none_is_empty():
    model = tiny("merged", bias=True, qkv_bias=True)
    groups = grouped(model, optimizer="muon").groups
    names = [name for group in groups for name in group.parameters]
    assert sorted(names) == sorted(named_arrays(model))
    assert [group.name for group in grouped(tiny()).groups] == ["matrices", "rest"]


def test_the_schedule_scales_every_group_s_peak():
    optimizer = grouped(tiny("merged"), optimizer="muon", muon_lr=0.2, lr=0.04)
    optimizer.schedule(0.5)
    rates = {
        group.name: float(group.optimizer.state["learning_rate"]) for group in optimizer.groups
    }
    assert rates == pytest.approx({"hidden": 0.1, "matrices": 0.02, "rest": 0.02})


@pytest.mark.parametrize(("optimizer", "moment"), [("adamw", "m"), ("muon", "v")])
@pytest.mark.parametrize(("longest", "factor"), [(1e-3, 1e-3), (10.0, 1.0)])
def test_gradients_are_clipped_to_the_global_norm(optimizer, moment, longest, factor):
    """The first moment after one step is a share of the gradient that the optimizer was given."""
    model = tiny()
    parameters = model.trainable_parameters()
    size = sum(array.size for array in named_arrays(parameters).values())
    gradients = tree_map(lambda p: mx.full(p.shape, size**-0.5), parameters)
    made = grouped(model, optimizer=optimizer, beta1=0.9)
    norm = made.update(model, gradients, longest)
    group = made.groups[0]
    seen, share = group.optimizer.state["0"][moment], {"adamw": 0.1, "muon": 0.05}[optimizer]
    assert float(norm) == pytest.approx(1, rel=1e-5)
    assert np.allclose(np.array(seen), share * factor * size**-0.5, rtol=1e-4)


# Many parameters at once, with the numbers of MLX's own.

SHAPES = {"a": (8, 8), "b": (24, 8), "c": (8, 24), "d": (8, 8)}


def tree(seed: int) -> dict:
    keys = mx.random.split(mx.random.key(seed), len(SHAPES))
    drawn = [
        mx.random.normal(shape, key=key) for shape, key in zip(SHAPES.values(), keys, strict=True)
    ]
    return {"a": drawn[0], "block": [{"b": drawn[1], "c": drawn[2]}, {"d": drawn[3]}]}


def moved_by(optimizer: optim.Optimizer, steps: int = 4) -> dict[str, np.ndarray]:
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
    ours, theirs = (moved_by(make()) for make in pair)
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
    assert not np.array(newton_schulz(0 * matrix[None])).any()


# The schedule.


def scheduled(**changes) -> TrainConfig:
    return TrainConfig(**{"steps": 100, "warmup": 10, "lr": 1.0, "min_lr": 0.1, **changes})


def factor(config: TrainConfig, step: int, seconds: float = 0.0) -> float:
    return learning_rate_factor(config, step, config.steps, seconds)


@pytest.mark.parametrize(
    ("settings", "factors"),
    [
        ({"schedule": "cosine"}, {55: (1 + 0.1) / 2, 100: 0.1}),
        ({"schedule": "wsd", "cooldown": 0.4}, {64: 1, 82: (1 + 0.1) / 2, 100: 0.1}),
        ({"schedule": "wsd", "cooldown": 0.0}, {100: 1}),
        ({"schedule": "constant"}, {100: 1}),
    ],
    ids=["half of a cosine", "flat, then linear", "no cooldown", "constant"],
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


@settings(max_examples=100)
@given(
    st.sampled_from(CHOICES["schedule"]),
    st.integers(0, 300),
    st.integers(0, 300),
    st.integers(0, 400),
    st.floats(0, 1),
    st.floats(0, 1e4),
)
def test_the_factor_stays_between_the_end_and_the_peak(
    schedule, steps, warmup, step, cooldown, seconds
):
    config = scheduled(
        schedule=schedule, steps=steps, warmup=warmup, cooldown=cooldown, minutes=10.0, min_lr=0.0
    )
    assert 0 <= learning_rate_factor(config, step, steps, seconds) <= 1
