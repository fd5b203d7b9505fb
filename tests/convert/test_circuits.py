"""S_h and V_h O_h, read off every form of attention; their measures; and laws of the algebra."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_attn.attention.attention import Attention
from mlx_attn.attention.catalog import VARIANTS
from mlx_attn.attention.layer import attention_scores
from mlx_attn.convert import circuits
from mlx_attn.convert.writers import balanced_factors
from tests.attention.conftest import layer_of

FORMS = {
    **{name: variant.maps for name, variant in VARIANTS.items() if variant.group == "forms"},
    "grouped": {"n_kv_heads": 2},
    "narrow values": {"value_dim": 2},
    "alibi": {"position": "alibi"},
    "mla": VARIANTS["mla"].maps,
}


def layer(**choices: Any) -> Attention:
    return layer_of(**{"d_in": 8, "d_out": 8, "context_length": 6, **choices})


def numbers(array: mx.array) -> np.ndarray:
    return np.array(array).astype(np.float64)


@pytest.mark.parametrize("form", FORMS)
def test_scores_are_x_S_x_transposed_and_outputs_what_heads_look_at_times_V_O(form):
    attention = layer(**FORMS[form])
    x = mx.random.normal((1, 6, 8))
    S, scale = circuits.qk_circuit(attention).products, attention.config.scale
    expected = scale * numbers(x) @ S @ numbers(x[0]).T
    scores = attention_scores(*attention.queries_and_keys(x), scale)
    np.testing.assert_allclose(numbers(scores)[0], expected, atol=1e-4)
    looked_at = numbers(attention.weights(x))[0] @ numbers(x)[0]
    expected = (looked_at @ circuits.ov_circuit(attention).products).sum(0)
    constant = numbers(attention(mx.zeros_like(x)))[0]
    np.testing.assert_allclose(numbers(attention(x))[0] - constant, expected, atol=1e-4)


@pytest.mark.parametrize("circuit", [circuits.qk_circuit, circuits.ov_circuit])
@pytest.mark.parametrize("n_kv_heads", [4, 2])
def test_factors_have_the_singular_values_of_their_product(circuit, n_kv_heads):
    found = circuit(layer(n_kv_heads=n_kv_heads))
    whole = np.linalg.svd(found.products, compute_uv=False)
    np.testing.assert_allclose(found.singular_values, whole[:, :2], atol=1e-12)
    np.testing.assert_allclose(whole[:, 2:], 0, atol=1e-12)


# Measures of matrices whose answers are known.


def test_ranks_of_unequal_values_are_what_their_formulas_say():
    entropy = -0.75 * np.log(0.75) - 0.25 * np.log(0.25)
    assert circuits.effective_rank(np.array([[3.0, 1.0]])) == pytest.approx(np.exp(entropy))
    assert circuits.stable_rank(np.array([[2.0, 1.0, 1.0]])) == pytest.approx(6 / 4)


def test_symmetry_goes_from_1_to_minus_1():
    A = np.random.default_rng(1).normal(size=(3, 5, 5))
    transposed = A.swapaxes(1, 2)
    np.testing.assert_allclose(circuits.symmetry(A + transposed), 1)
    np.testing.assert_allclose(circuits.symmetry(A - transposed), -1)
    assert circuits.symmetry(np.array([[[0.0, 1.0], [0.0, 0.0]]])) == 0


def test_alignment_ignores_sign_and_size_and_is_0_for_orthogonal_matrices():
    A = np.diag([1.0, 1.0])
    B = np.diag([1.0, -1.0])
    found = circuits.alignment(np.stack([A, -2 * A, B]))
    np.testing.assert_allclose(found, [[1, 1, 0], [1, 1, 0], [0, 0, 1]])


@settings(max_examples=20)
@given(st.integers(0, 2**16), *3 * [st.integers(1, 6)])
def test_balanced_factors_are_the_best_of_their_rank(seed, rows, columns, rank):
    M = np.random.default_rng(seed).normal(size=(rows, columns))
    A, B = balanced_factors(M, rank)
    lost = np.linalg.svd(M, compute_uv=False)[rank:]
    assert np.linalg.norm(M - A @ B) == pytest.approx(np.linalg.norm(lost), abs=1e-12)
    np.testing.assert_allclose(A.T @ A, B @ B.T, atol=1e-12)
