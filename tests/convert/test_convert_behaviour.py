"""A converted model trains and speaks like the one it was made from."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mlx_attn.convert.model import convert
from mlx_attn.model.gpt import GPT, model_cost
from mlx_attn.sampling.config import SamplerConfig
from mlx_attn.sampling.generate import stream_generate
from mlx_attn.training.batches import window_losses

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
