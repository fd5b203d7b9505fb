"""The floor has the products that the model computes, and no others."""

from collections import Counter

import mlx.core as mx
import pytest

from mlx_attn.attention.config import VARIANTS
from mlx_attn.bench.floors import (
    Product,
    Reading,
    Work,
    decoding,
    floors,
    forward_pass,
    model_products,
    multiply_adds,
    operations,
    training_step,
)
from mlx_attn.cpu import on_linux_cpu
from mlx_attn.model.config import GPTConfig, config_from
from mlx_attn.model.gpt import model_cost
from mlx_attn.training.config import TrainConfig

B, T = 3, 16
RECIPE = TrainConfig(steps=1, batch_size=B, compile="off")


def config(variant: str) -> GPTConfig:
    maps = VARIANTS[variant].maps
    sizes = {"vocab_size": 40, "context_length": T, "emb_dim": 32, "n_heads": 2, "n_layers": 2}
    return config_from({**sizes, "bias": False, **maps})


def products_of(work: Work) -> Counter[Product]:
    return model_products(work.config, work.reading)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_forward_pass_has_the_multiply_adds_that_variants_cost(variant):
    products = model_products(config(variant), Reading(B, T, T))
    assert (
        multiply_adds(products, backward=False) == B * T * model_cost(config(variant)).multiply_adds
    )


@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients_cost_twice_as_much_again(variant):
    products = model_products(config(variant), Reading(B, T, T))
    assert multiply_adds(products, backward=True) == 3 * multiply_adds(products, backward=False)


@pytest.mark.skipif(not on_linux_cpu(), reason="fused attention hides its two products")
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("kind", "times"), [(forward_pass, 1), (training_step, 3)])
def test_the_graph_has_just_these_products(variant, kind, times):
    work = kind(config(variant), RECIPE)
    assert work.operations()["Matmul"] == times * products_of(work).total()


@pytest.mark.skipif(not on_linux_cpu(), reason="fused attention hides its two products")
@pytest.mark.parametrize("variant", VARIANTS)
def test_decoding_has_just_these_products_for_each_token(variant):
    work = decoding(config(variant), RECIPE)
    assert work.operations()["Matmul"] == products_of(work).total()


def test_the_floor_computes():
    for way in floors(config("standard"), Reading(B, T, T), backward=True).values():
        way()


def test_a_product_counts_every_multiplication():
    assert Product(batch=2, rows=3, inner=5, columns=7).multiply_adds == 210


def test_operations_are_those_still_to_be_computed():
    x = mx.ones((2, 2))
    mx.eval(x)
    assert operations(mx.exp(x @ x)) == {"Matmul": 1, "Exp": 1}
