import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_map

from mlx_attn.arrays import named_arrays
from mlx_attn.attention.config import find_variant
from mlx_attn.errors import ConfigError
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT
from mlx_attn.training.config import TrainConfig
from mlx_attn.training.optimizers import GroupedOptimizer, is_hidden_matrix

HEADS, WIDTH = 4, 8


def tiny(variant: str = "standard", **changes) -> GPT:
    sizes = {
        "vocab_size": 11,
        "context_length": 6,
        "emb_dim": WIDTH,
        "n_heads": HEADS,
        "n_layers": 2,
    }
    return GPT(GPTConfig(**{**sizes, **find_variant(variant).settings, **changes}))


def recipe(**changes) -> TrainConfig:
    return TrainConfig(**{"steps": 10, "lr": 0.01, **changes})


def grouped(model: nn.Module, **changes) -> GroupedOptimizer:
    optimizer = GroupedOptimizer(model, recipe(**changes), HEADS, WIDTH)
    optimizer.schedule(1.0)
    return optimizer


def members(model: GPT, **changes) -> dict[str, set[str]]:
    """The parameters of each group."""
    return {group.name: set(group.parameters) for group in grouped(model, **changes).groups}


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


def test_the_first_step_moves_every_weight_by_the_learning_rate():
    for name, change in moved(tiny(), 3.0, lr=0.01).items():
        assert np.allclose(change, -0.01, atol=1e-6), name


def test_matrices_decay_and_norms_and_biases_do_not():
    model = tiny(bias=True, qkv_bias=True)
    arrays = named_arrays(model)
    for name, change in moved(model, 0.0, weight_decay=0.5).items():
        decays = bool(np.abs(change).max() > 0)
        assert decays == (arrays[name].ndim >= 2 and bool(mx.abs(arrays[name]).max() > 0)), name


def test_everything_decays_where_the_book_is_followed():
    changes = moved(tiny(), 0.0, weight_decay=0.5, decay="all")
    assert np.allclose(changes["trf_blocks.0.norm1.weight"], -0.01 * 0.5)


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


@pytest.mark.parametrize("momentum", [0.5, 0.95])
def test_the_momentum_of_muon_can_be_chosen(momentum):
    """After one step the moving average is 1 - m of the gradient."""
    model = tiny()
    gradients = tree_map(lambda p: mx.full(p.shape, 0.01), model.trainable_parameters())
    optimizer = grouped(model, optimizer="muon", muon_momentum=momentum)
    optimizer.update(model, gradients)
    assert np.allclose(
        np.array(optimizer.groups[0].optimizer.state["0"]["v"]), 0.01 * (1 - momentum)
    )


def test_with_a_base_width_matrices_that_multiply_learn_at_a_rate_of_their_width():
    changes = moved(tiny("merged"), 3.0, lr=0.01, base_width=2)
    expected = {
        **dict.fromkeys(("trf_blocks.0.att.W_value.weight", "out_head.weight"), -0.01 * 2 / WIDTH),
        **dict.fromkeys(("tok_emb.weight", "pos_emb.weight", "final_norm.weight"), -0.01),
        "trf_blocks.1.att.S.weight": -0.01 / HEADS * 2 / WIDTH,
    }
    for name, change in expected.items():
        assert np.allclose(changes[name], change, rtol=1e-3), name


def test_with_a_base_width_muon_s_rate_is_as_before():
    rates = [
        {group.name: group.peak for group in grouped(tiny(), optimizer="muon", **more).groups}
        for more in ({}, {"base_width": 2})
    ]
    assert rates[1] == {**rates[0], "products": 0.01 * 2 / WIDTH}


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
    groups = members(tiny(variant, bias=True), optimizer="muon")
    hidden = groups.pop("hidden")
    assert hidden
    assert all(n.startswith("trf_blocks.") and n.endswith("weight") for n in hidden)
    assert not any("norm" in name or "emb" in name or "head" in name for name in hidden)
    others = set[str]().union(*groups.values())
    assert {"tok_emb.weight", "out_head.weight", "pos_emb.weight"} <= others


def test_without_a_gradient_muon_moves_nothing():
    model, name = tiny(), "trf_blocks.0.att.W_query.weight"
    assert np.abs(np.array(named_arrays(model)[name])).max() > 0
    assert np.abs(moved(model, 0.0, optimizer="muon")[name]).max() == 0


def test_every_parameter_belongs_to_exactly_one_group_and_none_is_empty():
    model = tiny("merged", bias=True, qkv_bias=True)
    groups = members(model, optimizer="muon")
    names = [name for group in groups.values() for name in group]
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


def test_muon_moves_matrices_that_multiply_and_not_tables():
    square = mx.zeros((4, 4))
    assert is_hidden_matrix("trf_blocks.0.att.W_query.weight", square)
    assert not is_hidden_matrix("trf_blocks.0.att.value_table.weight", square)
    assert not is_hidden_matrix("tok_emb.weight", square)
