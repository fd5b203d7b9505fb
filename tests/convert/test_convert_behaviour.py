"""A converted model trains and speaks like the one it was made from, up to rounding."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mlx_attn.convert import measure
from mlx_attn.convert.measure import compare_logits, float64_logits
from mlx_attn.convert.model import convert
from mlx_attn.cost import model_cost
from mlx_attn.machine import attention_kernels, exponentials
from mlx_attn.model.gpt import GPT
from mlx_attn.sampling.config import SamplerConfig
from mlx_attn.sampling.generate import stream_generate
from mlx_attn.training.batches import window_losses

from .conftest import of_type

MODERN = {"block": "modern", "qk_norm": True, "position": "rope"}
SPEAKING = ["merged", "merged-both", "shrunk", "collaborative", "slim"]


def test_the_gradient_of_the_factors_is_that_of_the_product(trained, windows):
    """dW_query = dS W_key and dW_key = dS^T W_query, head by head."""
    model = trained()

    def gradients(model):
        mean_loss = nn.value_and_grad(model, lambda tokens: window_losses(model, tokens).mean())
        return mean_loss(windows)[1]

    of_factors, of_product = gradients(model), gradients(convert(model, "merged"))
    for block, factors, product in zip(
        model.trf_blocks, of_factors["trf_blocks"], of_product["trf_blocks"], strict=True
    ):
        W_query, W_key = (per_head(block.att[name].weight) for name in ("W_query", "W_key"))
        dW_query, dW_key = (per_head(factors["att"][n]["weight"]) for n in ("W_query", "W_key"))
        dS = np.array(product["att"]["S"]["weight"]).reshape(4, 32, 32).swapaxes(1, 2)
        np.testing.assert_allclose(dW_query, dS @ W_key, atol=1e-5)
        np.testing.assert_allclose(dW_key, dS.swapaxes(1, 2) @ W_query, atol=1e-5)
        assert np.abs(dW_query).max() > 1e-4


def per_head(weight: mx.array) -> np.ndarray:
    """Stored as (out, in), so each head's matrix is turned to act on x from the right."""
    return np.array(weight).reshape(4, 8, 32).swapaxes(1, 2)


@pytest.fixture(scope="module")
def spoken(trained, corpus) -> str:
    """What a trained model says, taking the likeliest token 80 times."""
    return greedy(trained(qkv_bias=True), corpus.tokenizer)[0]


@pytest.mark.parametrize("to", SPEAKING)
def test_greedy_text_is_the_same_with_the_cache_of_the_new_form(trained, corpus, spoken, to):
    converted = convert(trained(qkv_bias=True), to)
    text, cache = greedy(converted, corpus.tokenizer)
    assert len(text) == 80
    assert text == spoken
    assert cache == 4 * model_cost(converted.config).cache_floats


def greedy(model: GPT, tokenizer) -> tuple[str, int]:
    pieces = list(
        stream_generate(model, tokenizer, "the cat", SamplerConfig(temp=0.0), max_tokens=80)
    )
    return "".join(p.text for p in pieces), pieces[-1].statistics.cache_bytes_per_token


# How far logits are apart, and how much of it is rounding.


def test_float64_is_near_what_the_model_computes(trained, windows):
    for kind in ({"qkv_bias": True}, MODERN, {"position": "alibi"}):
        model = trained(**kind)
        difference = np.abs(float64_logits(model, windows) - np.array(model(windows))).max()
        assert 0 < difference < 1e-5


@pytest.mark.parametrize("powers", [True, False], ids=["powers", "MLX's own operations"])
def test_nothing_is_rounded_to_float32_on_the_way(trained, exact_difference, monkeypatch, powers):
    for module in (exponentials, attention_kernels):
        monkeypatch.setattr(module, "on_linux_cpu", lambda: powers)
    for kind in ({"qkv_bias": True}, MODERN):
        model = of_type(trained(**kind), mx.float64)
        assert exact_difference(model, convert(model, "slim")) < 1e-12


def test_a_model_beside_itself_shows_its_rounding_alone(trained, corpus):
    model = trained()
    same = compare_logits(model, model, corpus.val)
    assert same.logit_difference == same.exact_difference == 0
    assert 0 < same.rounding == same.rounding_after < 1e-5


def test_an_exact_conversion_differs_by_rounding(trained, corpus):
    model = trained(qkv_bias=True)
    merged = compare_logits(model, convert(model, "merged"), corpus.val)
    assert merged.exact_difference < merged.logit_difference
    apart = merged.exact_difference + merged.rounding + merged.rounding_after
    assert merged.logit_difference <= apart


def test_a_large_model_is_computed_in_float64_on_fewer_tokens(trained, corpus, monkeypatch):
    model, seen = trained(), []
    monkeypatch.setattr(measure, "_FLOAT64_WORK", 10 * model_cost(model.config).parameters)
    monkeypatch.setattr(
        measure, "float64_logits", lambda m, w: seen.append(w.shape) or float64_logits(m, w)
    )
    compare_logits(model, model, corpus.val)
    assert seen == [(1, 10), (1, 10)]
