"""Laws of the algebra, on random matrices."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mlx_attn
from mlx_attn.convert.algebra import (
    balanced_factors,
    fit_shared_maps,
    relative_error,
    shrink,
    values_from_keys,
)
from mlx_attn.errors import ConfigError

few = settings(max_examples=20)
sizes = st.integers(1, 6)
seeds = st.integers(0, 2**16)


def drawn(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


@few
@given(seeds, sizes, sizes, sizes)
def test_balanced_factors_are_the_best_of_their_rank(seed, rows, columns, rank):
    M = drawn(seed, rows, columns)
    A, B = balanced_factors(M, rank)
    lost = np.linalg.svd(M, compute_uv=False)[rank:]
    assert np.linalg.norm(M - A @ B) == pytest.approx(np.linalg.norm(lost), abs=1e-12)
    np.testing.assert_allclose(A.T @ A, B @ B.T, atol=1e-12)


@few
@given(seeds, st.integers(1, 6))
def test_of_a_stored_product_the_factors_are_as_good_without_the_whole_decomposition(seed, rank):
    stored = (drawn(seed, 2, 48, rank) @ drawn(seed + 1, 2, rank, 40)).astype(np.float32)
    M = stored.astype(np.float64)
    A, B = balanced_factors(M, rank)
    lost = np.linalg.norm(np.linalg.svd(M, compute_uv=False)[:, rank:], axis=1)
    assert np.all(np.linalg.norm(M - A @ B, axis=(1, 2)) <= 1.001 * lost + 1e-12)
    for left, right in zip(A, B, strict=True):
        np.testing.assert_allclose(
            left.T @ left, right @ right.T, atol=1e-9 * float(np.linalg.norm(M))
        )


@few
@given(seeds, st.integers(1, 5), st.integers(1, 5))
def test_shrunk_weights_give_back_the_matrix(seed, D, others):
    W = drawn(seed, D, D + others)
    basis, rest, places = shrink(W)
    whole = np.hstack([np.eye(D), rest])[:, places]
    np.testing.assert_allclose(basis @ whole, W, atol=1e-9)
    assert rest.size == W.size - D**2


def test_the_kept_columns_are_well_conditioned():
    """The first columns are nearly alike, and pivoting passes over them."""
    W = drawn(0, 4, 12)
    W[:, :4] = W[:, :1] + 1e-9 * W[:, :4]
    assert np.linalg.cond(W[:, :4]) > 1e8
    assert np.linalg.cond(shrink(W).basis) < 100


@few
@given(seeds, sizes, st.integers(0, 3), sizes)
def test_values_are_made_from_keys_that_hold_all_of_x(seed, C, more, value_width):
    W_key, W_value = drawn(seed, C + more, C) + np.eye(C + more, C), drawn(seed + 1, value_width, C)
    condition = np.linalg.cond(W_key)
    if condition < 1e4:
        M = values_from_keys(W_key, W_value)
        np.testing.assert_allclose(M @ W_key, W_value, atol=1e-10 * condition)


def test_a_matrix_that_cannot_be_inverted_is_refused():
    with pytest.raises(ConfigError, match="condition number"):
        shrink(np.ones((2, 4)))
    with pytest.raises(ConfigError, match="3 numbers of the key cannot give back emb_dim=4"):
        values_from_keys(drawn(0, 3, 4), drawn(1, 4, 4))


@few
@given(seeds, st.integers(1, 3), st.integers(2, 5), st.integers(1, 2))
def test_shared_maps_are_exact_at_the_width_of_all_heads(seed, H, C, D):
    S = drawn(seed, H, C + 1, D) @ drawn(seed + 1, H, D, C)
    assert relative_error(S, fit_shared_maps(S, H * D).product()) < 1e-12


def test_shared_maps_find_what_heads_share():
    """Heads that do share maps need no more than these, where heads apart would need more."""
    query, key, mixing = drawn(0, 9, 4), drawn(1, 8, 4), drawn(2, 4, 4)
    S = (query * mixing[:, None]) @ key.T
    apart = np.stack([A @ B for A, B in zip(*balanced_factors(S, 1), strict=True)])
    assert relative_error(S, fit_shared_maps(S, 4).product()) < 0.5 * relative_error(S, apart)


def test_the_package_decomposes_no_matrix_with_mlx():
    """Metal has no kernel for any: the call would raise on a Mac and nowhere else."""
    texts = {path: path.read_text("utf-8") for path in Path(mlx_attn.__file__).parent.rglob("*.py")}
    calls = {p: re.findall(r"(?:mx|mlx\.core)\.linalg\.(\w+)", text) for p, text in texts.items()}
    assert {name for names in calls.values() for name in names} <= {"norm"}
    assert not [path for path, text in texts.items() if "from mlx.core import" in text]
