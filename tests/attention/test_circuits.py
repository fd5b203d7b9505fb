"""S_h and V_h O_h, read off every form of attention."""

from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlx_attn.arrays import named_arrays
from mlx_attn.attention.analysis import (
    ScoreFactors,
    ov_circuit,
    qk_circuit,
    raw_scores,
    why_not_one_matrix,
)
from mlx_attn.attention.attention import Attention
from mlx_attn.attention.config import VARIANTS, AttentionConfig
from mlx_attn.errors import ConfigError, RunError

FORMS = {
    **{name: variant.maps for name, variant in VARIANTS.items() if variant.group == "forms"},
    "grouped": {"n_kv_heads": 2},
    "shrunk": {"score": "shrunk", "value": "shrunk"},
    "from_key": {"value": "from_key"},
    "narrow values": {"value_dim": 2},
    "alibi": {"position": "alibi"},
    "gain": {"output": "none", "residual_gain": True},
    "mla": VARIANTS["mla"].maps,
    "hadamard": VARIANTS["hadamard"].maps,
    "orthogonal": VARIANTS["orthogonal"].maps,
}


def layer(**choices: Any) -> Attention:
    """A layer whose weights, biases included, are all random."""
    mx.random.seed(3)
    sizes: dict[str, Any] = {"d_in": 8, "d_out": 8, "context_length": 6, "n_heads": 4}
    attention = Attention(AttentionConfig(**(sizes | choices)))
    attention.apply(randomised)
    attention.eval()
    return attention


def randomised(weight: mx.array) -> mx.array:
    """Random numbers in the place of others; integers, which are places, stay."""
    return mx.random.normal(weight.shape) if mx.issubdtype(weight.dtype, mx.floating) else weight


def numbers(array: mx.array) -> np.ndarray:
    return np.array(array).astype(np.float64)


@pytest.mark.parametrize("form", FORMS)
def test_scores_are_x_S_x_transposed(form):
    attention = layer(**FORMS[form])
    x = mx.random.normal((1, 6, 8))
    expected = (
        attention.config.scale * numbers(x) @ qk_circuit(attention).products @ numbers(x[0]).T
    )
    np.testing.assert_allclose(numbers(raw_scores(attention, x))[0], expected, atol=1e-4)


@pytest.mark.parametrize("form", FORMS)
def test_the_output_is_the_sum_of_what_heads_look_at_times_value_and_output(form):
    attention = layer(**FORMS[form])
    x = mx.random.normal((1, 6, 8))
    looked_at = numbers(attention.weights(x))[0] @ numbers(x)[0]
    expected = (looked_at @ ov_circuit(attention).products).sum(0)
    constant = numbers(attention(mx.zeros_like(x)))[0]
    np.testing.assert_allclose(numbers(attention(x))[0] - constant, expected, atol=1e-4)


@pytest.mark.parametrize("form", ["standard", "merged-both", "collaborative"])
def test_biases_are_no_part_of_the_matrices(form):
    choices = VARIANTS[form].maps
    attention = layer(**choices, qkv_bias=True)
    unbiased = layer(**choices, out_bias=False)
    shared = named_arrays(unbiased).keys()
    weights = named_arrays(attention).items()
    unbiased.load_weights([(name, array) for name, array in weights if name in shared])
    for circuit in (qk_circuit, ov_circuit):
        np.testing.assert_allclose(
            circuit(attention).products, circuit(unbiased).products, atol=1e-12
        )


@pytest.mark.parametrize("circuit", [qk_circuit, ov_circuit])
@pytest.mark.parametrize("n_kv_heads", [4, 2])
def test_factors_have_the_singular_values_of_their_product(circuit, n_kv_heads):
    found = circuit(layer(n_kv_heads=n_kv_heads))
    whole = np.linalg.svd(found.products, compute_uv=False)
    np.testing.assert_allclose(found.singular_values, whole[:, :2], atol=1e-12)
    np.testing.assert_allclose(whole[:, 2:], 0, atol=1e-12)


def test_a_wide_factor_is_multiplied_out():
    query, key = np.random.default_rng(0).normal(size=(2, 1, 5, 3))
    none = np.zeros((1, 5))
    assert ScoreFactors(query, none, key, none).singular_values.shape == (1, 3)


def test_the_book_s_class_may_have_another_width_at_the_end():
    assert ov_circuit(layer(d_out=12)).products.shape == (4, 8, 12)


@pytest.mark.parametrize(
    ("choices", "reason"),
    [
        ({}, ""),
        ({"position": "alibi"}, ""),
        ({"position": "rope"}, "the one of distance 0"),
        ({"qk_norm": True}, "the matrix before that"),
    ],
)
def test_it_is_said_when_scores_are_more_than_one_matrix(choices, reason):
    said = why_not_one_matrix(layer(**choices).config)
    assert reason in said
    assert bool(said) == bool(reason)


def test_with_rope_a_token_s_score_of_itself_is_that_of_distance_0():
    attention = layer(position="rope")
    x = mx.random.normal((1, 6, 8))
    S = qk_circuit(attention).products
    whole = attention.config.scale * numbers(x) @ S @ numbers(x[0]).T
    own = np.diagonal(numbers(raw_scores(attention, x))[0], 0, 1, 2)
    np.testing.assert_allclose(own, np.diagonal(whole, 0, 1, 2), atol=1e-4)


def test_dropout_does_not_reach_the_matrices():
    attention = layer(drop_rate=0.5)
    attention.train()
    attention.weights(mx.zeros((1, 2, 8)))
    np.testing.assert_array_equal(ov_circuit(attention).products, ov_circuit(attention).products)


def test_weights_that_are_not_finite_are_refused():
    attention = layer()
    attention.W_query.weight = attention.W_query.weight * mx.nan
    with pytest.raises(RunError, match="not finite"):
        qk_circuit(attention)


@pytest.mark.parametrize(("key", "circuit"), [("score", qk_circuit), ("value", ov_circuit)])
def test_a_map_that_is_not_affine_has_no_matrices(key, circuit):
    attention = layer()
    bent = replace(getattr(attention.maps, key), affine=False)
    attention.maps = replace(attention.maps, **{key: bent})
    with pytest.raises(ConfigError, match="is not affine in x"):
        circuit(attention)
