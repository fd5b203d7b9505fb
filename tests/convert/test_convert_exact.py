"""Exact conversions of trained models: equal to rounding, in float64 and in float32."""

import mlx.core as mx
import numpy as np
import pytest

from mlx_attn.convert.measure import weight_errors
from mlx_attn.convert.model import convert, fold_norms
from mlx_attn.errors import ConfigError
from mlx_attn.model.config import config_from
from mlx_attn.model.gpt import GPT

SEVERAL_HEADS = ("merged", "merged-output", "merged-both", "shrunk", "collaborative", "slim")
ONE_HEAD = ("merged", "merged-both", "no-out-proj", "no-key", "slim")
KINDS = [
    {"position": position, "qkv_bias": bias}
    for position in ("learned", "alibi", "none")
    for bias in (False, True)
]
BACK = [
    ("merged", "separate"),
    ("merged-output", "separate-output"),
    ("merged-both", "standard"),
    ("shrunk", "standard"),
    ("slim", "standard"),
    ("collaborative", "merged"),
    ("shrunk", "slim"),
]


def name_of(kind: dict) -> str:
    return f"{kind['position']}-{'biases' if kind['qkv_bias'] else 'no biases'}"


@pytest.mark.parametrize("kind", KINDS, ids=name_of)
@pytest.mark.parametrize("to", SEVERAL_HEADS)
def test_several_heads(trained, exact_difference, logit_difference, windows, kind, to):
    model = trained(**kind)
    converted = convert(model, to)
    limit = 1e-5
    assert logit_difference(model, converted, windows) < limit
    assert exact_difference(model, convert(of_type(model, mx.float64), to)) < 1e-12


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("to", ONE_HEAD)
def test_one_head(trained, exact_difference, to, bias):
    model = of_type(trained(n_heads=1, qkv_bias=bias), mx.float64)
    assert exact_difference(model, convert(model, to)) < 1e-12


def test_one_head_without_a_query_bias_needs_no_query_map(trained, exact_difference):
    model = of_type(trained(n_heads=1), mx.float64)
    assert exact_difference(model, convert(model, "no-query")) < 1e-12


@pytest.mark.parametrize(("there", "back"), BACK)
def test_back_again(trained, exact_difference, there, back):
    model = of_type(trained(qkv_bias=True), mx.float64)
    assert exact_difference(model, convert(convert(model, there), back)) < 1e-12


@pytest.mark.parametrize("form", ["score", "output"])
def test_a_matrix_trained_whole_needs_full_rank(trained, exact_difference, form):
    model = of_type(trained(**{form: "merged"}), mx.float64)
    to = {"score": "separate", "output": "separate-output"}[form]
    assert exact_difference(model, convert(model, to, rank=32)) < 1e-12
    assert exact_difference(model, convert(model, to, rank=8)) > 1e-6


@pytest.mark.parametrize("variant", ["no-query", "no-key", "shared-query-key", "key-as-value"])
def test_every_variant_can_be_written_in_the_standard_form(trained, exact_difference, variant):
    model = of_type(trained(variant=variant, qkv_bias=True), mx.float64)
    standard = convert(model, "standard")
    assert exact_difference(model, standard) < 1e-12
    assert exact_difference(model, convert(standard, "merged-both")) < 1e-12


def test_shared_keys_are_repeated(trained, exact_difference):
    model = of_type(trained(n_kv_heads=2, qkv_bias=True), mx.float64)
    for to in ("merged", "merged-both", "shrunk", "collaborative"):
        assert exact_difference(model, convert(model, to)) < 1e-12


@pytest.mark.parametrize("variant", ["standard", "merged", "merged-output", "merged-both"])
def test_the_norm_can_be_folded_in(trained, exact_difference, variant):
    model = of_type(trained(variant=variant), mx.float64)
    folded = fold_norms(model)
    for block in folded.trf_blocks:
        np.testing.assert_array_equal(block.norm1["weight"], 1)
        np.testing.assert_array_equal(block.norm1["bias"], 0)
    assert exact_difference(model, folded) < 1e-12


def test_folding_comes_before_the_conversion(trained, exact_difference):
    model = of_type(trained(), mx.float64)
    for to in ("merged", "shrunk", "slim"):
        assert exact_difference(model, convert(model, to, fold_norm=True)) < 1e-12


def test_slices_of_x_leave_no_place_for_the_gain(trained):
    with pytest.raises(ConfigError, match="nowhere to go"):
        convert(trained(variant="no-query"), "merged", fold_norm=True)


@pytest.mark.parametrize("to", ["merged", "separate", "collaborative"])
def test_the_scale_is_carried_along(trained, to):
    model = trained()
    rank = 12 if to != "merged" else 0
    converted = convert(model, to, rank=rank)
    assert converted.config.scale == model.config.scale == 8**-0.5


def test_a_conversion_leaves_the_model_as_it_was(trained, windows):
    model = trained()
    before = model(windows)
    convert(model, "merged", fold_norm=True)
    assert mx.array_equal(model(windows), before)


def test_the_weights_keep_their_type(trained):
    model = convert(of_type(trained(), mx.bfloat16), "merged")
    assert model.trf_blocks[0].att.S.weight.dtype == mx.bfloat16


def test_the_weights_say_so_too(trained):
    model = trained(qkv_bias=True)
    assert max(weight_errors(model, convert(model, "merged-both"))) < 1e-6


def of_type(model: GPT, dtype: mx.Dtype) -> GPT:
    """A copy of another type; in float64 a conversion's own rounding shows."""
    copy = GPT(model.config)
    copy.update(model.parameters())
    copy.set_dtype(dtype)
    return copy


WIDE = [
    *(("head_dim", "standard", to) for to in ("separate", "mla", "collaborative", "slim")),
    *(("head_dim", "merged", to) for to in ("standard", "separate", "mla", "collaborative")),
    *(("head_dim", "merged-output", to) for to in ("standard", "separate-output", "mla")),
    *(("value_dim", "standard", to) for to in ("merged-output", "slim", "mla")),
    *(("value_dim", "merged-output", to) for to in ("standard", "separate-output", "mla")),
]


@pytest.mark.parametrize(("wide", "form", "to"), WIDE)
def test_heads_wider_than_x_hold_zeros_beyond_the_rank(exact_difference, windows, wide, form, to):
    sizes = {"vocab_size": 64, "context_length": 32, "n_layers": 1, "emb_dim": 12, "n_heads": 2}
    config = config_from({**sizes, "position": "none", wide: 16})
    model = of_type(GPT(config, seed=1), mx.float64)
    model = model if form == "standard" else convert(model, form)
    assert exact_difference(model, convert(model, to)) < 1e-12
