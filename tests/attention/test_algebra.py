"""Laws of the algebra, on random matrices."""

import ast
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mlx_attn
from mlx_attn.attention.algebra import (
    balanced_factors,
    fit_shared_maps,
    relative_error,
    shrink,
    values_from_keys,
)
from mlx_attn.attention.layer import merge_query_key, merge_value_output
from mlx_attn.errors import ConfigError

few = settings(max_examples=20)
sizes = st.integers(1, 6)
seeds = st.integers(0, 2**16)


def drawn(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


@few
@given(seeds, sizes, sizes, st.integers(1, 3), st.integers(1, 2))
def test_a_merged_score_is_the_product_of_query_and_key(seed, C, D, groups, shared):
    H = groups * shared
    W_query, W_key = drawn(seed, H * D, C), drawn(seed + 1, groups * D, C)
    x_i, x_j = drawn(seed + 2, C), drawn(seed + 3, C)
    S = merge_query_key(W_query, W_key, H)
    for h in range(H):
        q = W_query[h * D : (h + 1) * D] @ x_i
        k = W_key[h // shared * D : (h // shared + 1) * D] @ x_j
        assert S[h * C : (h + 1) * C] @ x_i @ x_j == pytest.approx(q @ k, rel=1e-9, abs=1e-12)


@few
@given(seeds, sizes, sizes, st.integers(1, 3), st.integers(1, 2))
def test_a_merged_output_is_the_product_of_value_and_output(seed, C, D, groups, shared):
    H, d_out = groups * shared, 5
    W_value, out_proj = drawn(seed, groups * D, C), drawn(seed + 1, d_out, H * D)
    read = drawn(seed + 2, H, C)
    VO = merge_value_output(W_value, out_proj, H)
    values = [W_value[h // shared * D : (h // shared + 1) * D] @ read[h] for h in range(H)]
    np.testing.assert_allclose(
        VO @ read.reshape(-1), out_proj @ np.concatenate(values), rtol=1e-9, atol=1e-12
    )


def test_the_products_serve_both_array_libraries():
    W_query, W_key = drawn(0, 6, 4), drawn(1, 6, 4)
    of_mlx = merge_query_key(mx.array(W_query), mx.array(W_key), 3)
    np.testing.assert_allclose(of_mlx, merge_query_key(W_query, W_key, 3), atol=1e-5)


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


def test_the_larger_factors_come_first():
    A, _ = balanced_factors(drawn(0, 3, 8, 8), 8)
    lengths = np.linalg.norm(A, axis=1)
    assert (np.diff(lengths, axis=1) <= 0).all()


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


def test_what_has_no_basis_is_refused():
    with pytest.raises(ConfigError, match="condition number"):
        shrink(np.ones((2, 4)))


@few
@given(seeds, sizes, st.integers(0, 3), sizes)
def test_values_are_made_from_keys_that_hold_all_of_x(seed, C, more, value_width):
    W_key, W_value = drawn(seed, C + more, C) + np.eye(C + more, C), drawn(seed + 1, value_width, C)
    condition = np.linalg.cond(W_key)
    if condition < 1e4:
        M = values_from_keys(W_key, W_value)
        np.testing.assert_allclose(M @ W_key, W_value, atol=1e-10 * condition)


def test_keys_that_hold_less_than_x_are_refused():
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


def test_every_decomposition_of_mlx_names_the_cpu_stream():
    """Metal has no kernel for any: the call would raise on a Mac and nowhere else."""
    package = Path(mlx_attn.__file__).parent
    calls = {path: unplaced_calls(path.read_text("utf-8")) for path in package.rglob("*.py")}
    assert {path: lines for path, lines in calls.items() if lines} == {}


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ("mx.linalg.svd(a)", [1]),
        ("x = 1\nmlx.core.linalg.qr(a, stream=mx.gpu)", [2]),
        ("from mlx.core import linalg\nlinalg.inv(a)", [2]),
        ("mx.linalg.svd(a, stream=mx.cpu)", []),
        ("np.linalg.svd(a)", []),
        ("mx.linalg.norm(a)", []),
    ],
)
def test_the_check_of_streams_sees_what_it_should(code, lines):
    assert unplaced_calls(code) == lines


ON_METAL_TOO = {"norm"}


def unplaced_calls(code: str) -> list[int]:
    """The lines that call a decomposition of mx.linalg without stream=mx.cpu."""
    if "linalg" not in code:
        return []
    calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    return [call.lineno for call in calls if _decomposes(call) and not _on_cpu(call)]


def _decomposes(call: ast.Call) -> bool:
    *room, name = ast.unparse(call.func).split(".")
    numpy = room and room[0] in ("np", "numpy", "scipy")
    return room[-1:] == ["linalg"] and not numpy and name not in ON_METAL_TOO


def _on_cpu(call: ast.Call) -> bool:
    return any(k.arg == "stream" and ast.unparse(k.value) == "mx.cpu" for k in call.keywords)
