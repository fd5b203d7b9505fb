"""A matrix as a product of two thin ones."""

import numpy as np
from jaxtyping import Float


def balanced_factors(
    matrix: Float[np.ndarray, "*heads rows columns"], rank: int
) -> tuple[Float[np.ndarray, "*heads rows rank"], Float[np.ndarray, "*heads rank columns"]]:
    """The best product A B of that rank, with both factors equally large.

    With the singular value decomposition M = U diag(s) V, A = U sqrt(s) and B = sqrt(s) V, cut to
    the largest singular values, which come first. No matrix of that rank is nearer to M in the
    Frobenius norm (Eckart and Young, 1936); at full rank the product is M.
    """
    U, s, V = np.linalg.svd(matrix, full_matrices=False)
    root = np.sqrt(s[..., :rank])
    return U[..., :rank] * root[..., None, :], root[..., :, None] * V[..., :rank, :]


def relative_error(
    exact: Float[np.ndarray, "*shape"], approximate: Float[np.ndarray, "*shape"]
) -> float:
    """|exact - approximate| / |exact| in the Frobenius norm; 0 where both are 0."""
    size = np.linalg.norm(exact)
    return float(np.linalg.norm(exact - approximate) / size) if size else 0.0
