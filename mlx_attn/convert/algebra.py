"""Matrices as products of smaller ones, in NumPy: low rank."""

import numpy as np
from jaxtyping import Float

_SPARE = 8
"""Random vectors beyond the rank."""
_STORED = 1e-6
"""Relative error of a product of the rank that is stored in float32."""


def balanced_factors(
    matrix: Float[np.ndarray, "*heads rows columns"], rank: int
) -> tuple[Float[np.ndarray, "*heads rows rank"], Float[np.ndarray, "*heads rank columns"]]:
    """Return the best product A B of that rank, with both factors equally large.

    With the singular value decomposition M = U diag(s) V, A = U sqrt(s) and B = sqrt(s) V, cut to
    the largest singular values, which come first. No matrix of that rank is nearer to M in the
    Frobenius norm (Eckart and Young, 1936); at full rank the product is M. Beyond the number of
    rows or columns of M, both factors hold zeros.
    """
    U, s, V = _low_rank_svd(matrix, rank) or np.linalg.svd(matrix, full_matrices=False)
    # [..., rank]: half of each singular value goes to each factor.
    root = np.sqrt(s[..., :rank])
    left, right = U[..., :rank] * root[..., None, :], root[..., :, None] * V[..., :rank, :]
    return widened(left, rank), widened(right.swapaxes(-2, -1), rank).swapaxes(-2, -1)


def widened(
    matrix: Float[np.ndarray, "*heads rows columns"], width: int
) -> Float[np.ndarray, "*heads rows width"]:
    """Add columns of zeros up to a width: the product with a matrix that has so many rows stays."""
    missing = max(0, width - matrix.shape[-1])
    return np.pad(matrix, [(0, 0)] * (matrix.ndim - 1) + [(0, missing)])


def balanced_factors_of_product(
    left: Float[np.ndarray, "*heads rows D"],
    right: Float[np.ndarray, "*heads D columns"],
    rank: int,
) -> tuple[Float[np.ndarray, "*heads rows rank"], Float[np.ndarray, "*heads rank columns"]]:
    """Return `balanced_factors` of M = left right, without computing M if D and the rank are small.

    With left = Q_1 R_1, right^T = Q_2 R_2 and R_1 R_2^T = U diag(s) V, the singular value
    decomposition of M is (Q_1 U) diag(s) (V Q_2^T): a matrix of D x D instead of one of C x C.
    """
    # Otherwise R_left R_right^T would be no smaller than the product itself.
    if not rank <= left.shape[-1] < min(left.shape[-2], right.shape[-1]):
        return balanced_factors(left @ right, rank)
    Q_left, R_left = np.linalg.qr(left)
    Q_right, R_right = np.linalg.qr(right.swapaxes(-2, -1))
    # [D, D]; the orthonormal Q keep its singular values.
    A, B = balanced_factors(R_left @ R_right.swapaxes(-2, -1), rank)
    return Q_left @ A, B @ Q_right.swapaxes(-2, -1)


def _low_rank_svd(
    matrix: Float[np.ndarray, "*heads rows columns"], rank: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Decompose a matrix that has the given rank except for rounding; return None for others.

    The products of a wide matrix with a few more random vectors than its rank span its columns. The
    matrix is decomposed in that basis, which takes a twentieth of the time for heads of GPT-2
    (Halko, Martinsson and Tropp, arXiv:0909.4061, algorithms 4.4 and 5.1).
    """
    width = rank + _SPARE
    if 2 * width > min(matrix.shape[-2:]):
        return None
    # A fixed seed: a conversion gives the same weights every time.
    drawn = np.random.default_rng(0).standard_normal((matrix.shape[-1], width))
    basis = np.linalg.qr(matrix @ drawn).Q
    # One power iteration sharpens the basis towards the large singular values.
    basis = np.linalg.qr(matrix @ (matrix.swapaxes(-2, -1) @ basis)).Q
    small = basis.swapaxes(-2, -1) @ matrix
    U, s, V = np.linalg.svd(small, full_matrices=False)
    rest = np.linalg.norm(matrix - basis @ small, axis=(-2, -1))
    # The part outside the basis, and the singular values beyond the rank: orthogonal errors.
    rest = np.hypot(rest, np.linalg.norm(s[..., rank:], axis=-1))
    if np.any(rest > _STORED * np.linalg.norm(s, axis=-1)):
        return None
    return basis @ U, s, V


def relative_error(
    exact: Float[np.ndarray, "*shape"], approximate: Float[np.ndarray, "*shape"]
) -> float:
    """Return |exact - approximate| / |exact| in the Frobenius norm; 0 if both are 0."""
    size = np.linalg.norm(exact)
    return float(np.linalg.norm(exact - approximate) / size) if size else 0.0
