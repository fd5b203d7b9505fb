"""How far logits are apart, and what of it is rounding."""

import mlx.core as mx
import numpy as np
import pytest

from mlx_attn.convert import measure as logits
from mlx_attn.convert.measure import compare_logits, float64_logits
from mlx_attn.convert.model import convert
from mlx_attn.machine import attention_kernels, exponentials
from mlx_attn.model.gpt import GPT, model_cost

MODERN = {"block": "modern", "qk_norm": True, "position": "rope"}


def doubled(model: GPT) -> GPT:
    """The same model in float64, whose conversions are not rounded when they are stored."""
    copy = GPT(model.config)
    copy.update(model.parameters())
    copy.set_dtype(mx.float64)
    return copy


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
        model = doubled(trained(**kind))
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
    monkeypatch.setattr(logits, "FLOAT64_WORK", 10 * model_cost(model.config).parameters)
    monkeypatch.setattr(
        logits, "float64_logits", lambda m, w: seen.append(w.shape) or float64_logits(m, w)
    )
    compare_logits(model, model, corpus.val)
    assert seen == [(1, 10), (1, 10)]
