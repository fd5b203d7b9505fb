"""Laws of the algebra, on random matrices."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mlx_attn
from mlx_attn.convert.algebra import balanced_factors

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


def test_the_package_decomposes_no_matrix_with_mlx():
    """Metal has no kernel for any: the call would raise on a Mac and nowhere else."""
    texts = {path: path.read_text("utf-8") for path in Path(mlx_attn.__file__).parent.rglob("*.py")}
    calls = {p: re.findall(r"(?:mx|mlx\.core)\.linalg\.(\w+)", text) for p, text in texts.items()}
    assert {name for names in calls.values() for name in names} <= {"norm"}
    assert not [path for path, text in texts.items() if "from mlx.core import" in text]
