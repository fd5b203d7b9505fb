"""A converted model trains and speaks like the one it was made from, up to rounding."""

import mlx.core as mx
import pytest

from mlx_attn.convert.measure import compare_logits
from mlx_attn.convert.model import convert
from mlx_attn.cost import model_cost
from mlx_attn.machine import attention_kernels, exponentials
from mlx_attn.model.gpt import GPT
from mlx_attn.sampling.config import SamplerConfig
from mlx_attn.sampling.generate import stream_generate

from .conftest import of_type

MODERN = {"block": "modern", "qk_norm": True, "position": "rope"}
SPEAKING = ["merged", "merged-both"]


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


@pytest.mark.parametrize("powers", [True, False], ids=["powers", "MLX's own operations"])
def test_nothing_is_rounded_to_float32_on_the_way(trained, exact_difference, monkeypatch, powers):
    for module in (exponentials, attention_kernels):
        monkeypatch.setattr(module, "on_linux_cpu", lambda: powers)
    for kind in ({"qkv_bias": True}, MODERN):
        model = of_type(trained(**kind), mx.float64)
        assert exact_difference(model, convert(model, "merged-output")) < 1e-12


def test_an_exact_conversion_differs_by_rounding(trained, corpus):
    model = trained(qkv_bias=True)
    merged = compare_logits(model, convert(model, "merged"), corpus.val)
    assert merged.exact_difference < merged.logit_difference
    apart = merged.exact_difference + merged.rounding + merged.rounding_after
    assert merged.logit_difference <= apart
