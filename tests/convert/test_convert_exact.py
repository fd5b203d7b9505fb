"""Exact conversions of trained models: equal to rounding, in float64 and in float32."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlx_attn.convert.measure import compare_logits, weight_errors
from mlx_attn.convert.model import convert, fold_norms
from mlx_attn.machine import operations
from mlx_attn.machine.device import float64
from tests.runs import small_gpt

from .conftest import convert_exactly, of_type

SEVERAL_HEADS = ("merged", "merged-output", "merged-both")
SHARED = ("merged", "merged-both")
ONE_HEAD = ("merged", "merged-both", "no-out-proj", "no-key")
KINDS = [
    {"position": "learned", "qkv_bias": False},
    {"position": "alibi", "qkv_bias": True},
    {"position": "none", "qkv_bias": True},
]
BACK = [("merged", "separate"), ("merged-output", "separate-output"), ("merged-both", "standard")]
NO_BIAS, BIAS = {"qkv_bias": False}, {"qkv_bias": True}
LATENT = {"score": "latent", "value": "latent", "latent_dim": 32}
EXACT: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    *((kind, (to,)) for kind in KINDS for to in SEVERAL_HEADS),
    *(({"n_heads": 1, **bias}, (to,)) for to in ONE_HEAD for bias in (NO_BIAS, BIAS)),
    ({"n_heads": 1, **NO_BIAS}, ("no-query",)),
    ({"n_heads": 1, "bias": False, "drop_rate": 0.1}, ("no-out-proj",)),
    *((BIAS, there_and_back) for there_and_back in BACK),
    *(
        ({"variant": variant, **BIAS}, ("standard", "merged-both"))
        for variant in ("no-query", "no-key", "shared-query-key", "key-as-value")
    ),
    *(({"n_kv_heads": 2, **BIAS}, (to,)) for to in SHARED),
    ({"output": "normed"}, ("merged",)),
    # Latents of full rank.
    *((LATENT, (to,)) for to in ("standard", "merged-both")),
    ({**LATENT, "output": "none"}, ("mla",)),
    *((kind, ("mla",)) for kind in (NO_BIAS, BIAS, {"n_kv_heads": 2, **BIAS})),
    # The key is x, which has no bias that the sink would let through.
    ({"score": "merged", "mixing": "sink", "head_dim": 32, **BIAS}, ("separate",)),
]
"""A model, and conversions one after the other: each result computes the same."""


@pytest.mark.parametrize(("settings", "route"), EXACT, ids=str)
def test_conversions_one_after_the_other(trained, exact_difference, windows, settings, route):
    model = trained(**settings)
    rounded, exact = model, of_type(model, mx.float64)
    for to in route:
        rounded, exact = convert(rounded, to), convert_exactly(exact, to)
        assert np.abs(model(windows) - rounded(windows)).max() < 1e-5
        assert exact_difference(model, exact) < 1e-12


@pytest.mark.parametrize("variant", ["standard", "merged", "merged-output", "merged-both"])
@pytest.mark.parametrize("keys", [{}, {"norm": "rmsnorm", "drop_rate": 0.1}])
def test_the_norm_can_be_folded_in(trained, exact_difference, variant, keys):
    model = of_type(trained(variant=variant, **keys), mx.float64)
    with float64():
        folded = fold_norms(model)
    for block in folded.trf_blocks:
        np.testing.assert_array_equal(block.norm1["weight"], 1)
        np.testing.assert_array_equal(block.norm1.get("bias", 0), 0)
    assert exact_difference(model, folded) < 1e-12


def test_a_conversion_leaves_the_model_as_it_was_and_keeps_the_type_of_weights(trained, windows):
    model = trained()
    before = model(windows)
    convert(model, "merged", fold_norm=True)
    assert mx.array_equal(model(windows), before)
    small = convert(of_type(model, mx.bfloat16), "merged")
    assert small.trf_blocks[0].att["S"].weight.dtype == mx.bfloat16


@pytest.mark.parametrize("powers", [True, False], ids=["powers", "MLX's own operations"])
def test_nothing_is_rounded_to_float32_on_the_way(
    trained, exact_difference, monkeypatch, powers, on_processor
):
    monkeypatch.setattr(operations, "on_linux_cpu", lambda: powers)
    for kind in ({"qkv_bias": True}, {"block": "modern", "qk_norm": True, "position": "rope"}):
        model = of_type(trained(**kind), mx.float64)
        assert exact_difference(model, convert_exactly(model, "merged-output")) < 1e-12


def test_an_exact_conversion_differs_by_rounding(trained, corpus):
    model = trained(qkv_bias=True)
    merged = compare_logits(model, convert(model, "merged"), corpus.val)
    assert merged.exact_difference < merged.logit_difference
    apart = merged.exact_difference + merged.rounding + merged.rounding_after
    assert merged.logit_difference <= apart


@pytest.mark.parametrize(
    ("settings", "to"),
    [
        ({"variant": "merged"}, "separate"),
        ({"variant": "merged-output"}, "separate-output"),
        ({}, "mla"),
        ({"n_kv_heads": 2, **BIAS}, "mla"),
    ],
)
def test_the_error_falls_as_the_rank_grows(trained, settings, to):
    model = trained(**settings)
    errors = [max(weight_errors(model, convert(model, to, rank=rank))) for rank in (1, 4, 8, 32)]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 0.1
    assert errors[-1] < 1e-5


def test_a_fitted_conversion_keeps_the_attention_of_one_layer_at_a_time(no_lookahead):
    model, tokens = small_gpt(n_layers=20, context_length=64), mx.arange(4096).reshape(64, 64) % 20
    others = mx.get_active_memory()
    mx.reset_peak_memory()
    convert(model, "no-out-proj", tokens=tokens)
    taken, weights = mx.get_peak_memory() - others, 4 * 64 * 2 * 64 * 64  # bytes, of one layer
    assert taken < 10 * weights
