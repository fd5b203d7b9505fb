"""Ranks, symmetry and alignment of matrices whose answers are known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_attn.attention.analysis import (
    ScoreFactors,
    alignment,
    effective_rank,
    spectra,
    stable_rank,
    symmetry,
)


def random_matrices(seed: int, heads: int = 3, C: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(heads, C, C))


@pytest.mark.parametrize("rank", [1, 2, 5])
def test_equal_singular_values_make_both_ranks_the_rank(rank):
    values = np.r_[np.full(rank, 3.0), np.zeros(5 - rank)][None]
    assert effective_rank(values) == pytest.approx(rank)
    assert stable_rank(values) == pytest.approx(rank)


def test_ranks_of_unequal_values_are_what_their_formulas_say():
    entropy = -0.75 * np.log(0.75) - 0.25 * np.log(0.25)
    assert effective_rank(np.array([[3.0, 1.0]])) == pytest.approx(np.exp(entropy))
    assert stable_rank(np.array([[2.0, 1.0, 1.0]])) == pytest.approx(6 / 4)


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.floats(0.01, 100))
def test_no_number_depends_on_the_matrix_s_size_and_ranks_are_ordered(seed, factor):
    matrices = random_matrices(seed)
    values = np.linalg.svd(matrices, compute_uv=False)
    for measure, given_ in ((effective_rank, values), (stable_rank, values), (symmetry, matrices)):
        np.testing.assert_allclose(measure(factor * given_), measure(given_), rtol=1e-9)
    assert np.all(stable_rank(values) <= effective_rank(values) + 1e-9)
    assert np.all(effective_rank(values) <= 5 + 1e-9)


def test_symmetry_goes_from_1_to_minus_1():
    A = random_matrices(1)
    transposed = A.swapaxes(1, 2)
    np.testing.assert_allclose(symmetry(A + transposed), 1)
    np.testing.assert_allclose(symmetry(A - transposed), -1)
    assert symmetry(np.array([[[0.0, 1.0], [0.0, 0.0]]])) == 0


def test_alignment_ignores_sign_and_size_and_is_0_for_orthogonal_matrices():
    A = np.diag([1.0, 1.0])
    B = np.diag([1.0, -1.0])
    np.testing.assert_allclose(
        alignment(np.stack([A, -2 * A, B])), [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    )


def test_the_zero_matrix_has_no_rank_and_no_direction():
    none = np.zeros((1, 2))
    found = spectra([ScoreFactors(np.zeros((1, 2, 3)), none, np.ones((1, 2, 3)), none)])
    assert found.effective_rank == found.stable_rank == found.symmetry == found.norm == 0
    np.testing.assert_array_equal(alignment(np.zeros((2, 3, 3))), np.zeros((2, 2)))
