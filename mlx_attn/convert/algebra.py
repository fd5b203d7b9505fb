"""Matrices as products of smaller ones, in NumPy: low rank, maps shared by heads, shared bases.

Only products of two maps reach the output, W_1 W_2 = (W_1 B) (B^-1 W_2), so D^2 weights of each
head are free to choose (Wasielewski and Graef, "MatShrink"), and if the key holds all of x, the
value can be made from it (Graef and Wasielewski, arXiv:2503.05840).
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from mlx_attn.errors import ConfigError

_LARGEST_CONDITION = 1e5
"""Of an inverted matrix: float32 keeps seven digits, and such a matrix may cost five of them."""

_SPARE = 8
"""Random vectors beyond the rank."""
_STORED = 1e-6
"""Relative error of a product of the rank that is stored in float32."""

_SWEEPS = 100
_SETTLED = 1e-5
"""A sweep that lowers the relative error by less than this share of it is the last."""
_ROUNDING = 1e-13
"""Relative error treated as 0."""
_RIDGE = 1e-12
"""Keeps the normal equations solvable if two shared dimensions are the same."""


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


class Shrunk(NamedTuple):
    """A matrix W = basis [I, rest], its columns taken in the order (kept, others).

    Attributes:
        basis: The kept columns of W.
        rest: The factor that turns the basis into the other columns.
        places: Where each column of W is in that order.
    """

    basis: Float[np.ndarray, "D D"]
    rest: Float[np.ndarray, "D others"]
    places: Int[np.ndarray, " C"]


def shrink(W: Float[np.ndarray, "D C"]) -> Shrunk:
    """Take D columns of a wide matrix as the basis of the others: D^2 fewer weights, same product.

    The columns are chosen by QR with column pivoting, so that the basis is well conditioned: the
    next one is always the one that the ones before explain least.
    """
    from scipy.linalg import qr  # which reading a model does without

    pivoted: Any = qr(W, mode="r", pivoting=True)
    # [D] indices of the columns that QR chose first.
    kept = pivoted[1][: len(W)]
    others = np.setdiff1d(np.arange(W.shape[1]), kept)
    basis = W[:, kept]
    _require_invertible(np.linalg.cond(basis), "shrunk", "convert --to separate at a lower --rank")
    # The inverse permutation: where column c of W is in (kept, others).
    places = np.argsort(np.concatenate([kept, others])).astype(np.int32)
    return Shrunk(basis, np.linalg.solve(basis, W[:, others]), places)


def values_from_keys(
    W_key: Float[np.ndarray, "key_width C"], W_value: Float[np.ndarray, "value_width C"]
) -> Float[np.ndarray, "value_width key_width"]:
    """Return M with W_value = M W_key, as stored weights: v = k M^T without x.

    Args:
        W_key: Stored weight of all key heads together, at least C wide.
        W_value: Stored weight of the value map.
    """
    width, C = W_key.shape
    if width < C:
        raise ConfigError(
            f"{width} numbers of the key cannot give back emb_dim={C} of x: slim attention needs "
            "n_kv_heads * head_dim of at least emb_dim, so no grouped heads"
        )
    # Stored weights act from the left: W_value = M W_key is W_key^T M^T = W_value^T.
    M, _, _, s = np.linalg.lstsq(W_key.T, W_value.T, rcond=None)
    _require_invertible(s[0] / max(s[-1], 1e-300), "slim", "train it longer, or keep the values")
    return M.T


def _require_invertible(condition: float, form: str, way_out: str) -> None:
    if not condition <= _LARGEST_CONDITION:
        raise ConfigError(
            f"the {form} form inverts a matrix of W_key or W_value whose condition number is "
            f"{condition:.1e}, above {_LARGEST_CONDITION:.0e}: {way_out}"
        )


class SharedMaps(NamedTuple):
    """S_h = query diag(mixing_h) key^T."""

    query: Float[np.ndarray, "rows R"]
    key: Float[np.ndarray, "C R"]
    mixing: Float[np.ndarray, "H R"]

    def product(self) -> Float[np.ndarray, "H rows C"]:
        """Return the matrices S_h."""
        return (self.query * self.mixing[:, None]) @ self.key.T


def fit_shared_maps(S: Float[np.ndarray, "H rows C"], width: int) -> SharedMaps:
    """Return maps of that width, shared by all heads, that give the nearest S_h (arXiv:2006.16362).

    This is the canonical polyadic decomposition of the tensor S. It starts from every head's best
    factors of rank width / H, each used by only its own head, which is exact if no S_h has a higher
    rank. Alternating least squares then solves for one of the three at a time, and goes further in
    the direction of a sweep if that reduces the error more. The error never grows, but the result
    may be a local optimum.

    Args:
        S: A matrix per head.
        width: Shared width R, a multiple of the number of heads.
    """
    n_heads, rows, C = S.shape
    # [H, rows, D], [H, D, C]; with R = H D, head h owns columns h D..(h+1) D of the shared maps.
    query, key = balanced_factors(S, width // n_heads)
    mixing = np.repeat(np.eye(n_heads), width // n_heads, axis=1)
    maps = SharedMaps(query.swapaxes(0, 1).reshape(rows, width), key.reshape(width, C).T, mixing)
    error, pace = relative_error(S, maps.product()), 1.0
    for _ in range(_SWEEPS):
        if error < _ROUNDING:
            break
        swept = _sweep(S, maps)
        # `pace` grows as long as going beyond a sweep pays, and halves otherwise.
        ahead = SharedMaps(*(b + pace * (b - a) for a, b in zip(maps, swept, strict=True)))
        candidates = {relative_error(S, new.product()): new for new in (ahead, swept)}
        previous, error = error, min(candidates)
        if previous - error < _SETTLED * previous:
            break
        maps = candidates[error]
        pace *= 1.5 if maps is ahead else 0.5
    return _balanced(maps)


def _sweep(S: Float[np.ndarray, "H rows C"], maps: SharedMaps) -> SharedMaps:
    """Solve least squares for the query map, then the key map, then the mixing vectors."""
    _, key, mixing = maps
    # [H, rows, R] * [H, 1, R] -> [rows, R]: the right side of the normal equations.
    towards_query = ((S @ key) * mixing[:, None]).sum(0)
    query = _solve(towards_query, mixing.T @ mixing, key.T @ key)
    towards_key = ((S.swapaxes(1, 2) @ query) * mixing[:, None]).sum(0)
    key = _solve(towards_key, mixing.T @ mixing, query.T @ query)
    # [H, rows, R] * [rows, R] -> [H, R]
    towards_mixing = ((S @ key) * query).sum(1)
    mixing = _solve(towards_mixing, query.T @ query, key.T @ key)
    return _balanced(SharedMaps(query, key, mixing))


def _solve(
    right: Float[np.ndarray, "rows R"],
    gram: Float[np.ndarray, "R R"],
    other_gram: Float[np.ndarray, "R R"],
) -> Float[np.ndarray, "rows R"]:
    # The Gram matrix of a Khatri-Rao product is the element-wise product of both Gram matrices.
    normal = gram * other_gram
    ridge = _RIDGE * np.trace(normal) / len(normal)
    return np.linalg.solve(normal + ridge * np.eye(len(normal)), right.T).T


def _balanced(maps: SharedMaps) -> SharedMaps:
    """Rescale: the same product, query and key equally large, mixing vectors within [-1, 1]."""
    largest = np.abs(maps.mixing).max(axis=0)
    sizes = np.linalg.norm(maps.query, axis=0), np.linalg.norm(maps.key, axis=0)
    # Each of the R dimensions can be scaled by itself: only the product of its three sizes counts.
    shared = np.sqrt(sizes[0] * sizes[1] * largest)
    query, key = (
        matrix * np.divide(shared, size, out=np.zeros_like(shared), where=size > 0)
        for matrix, size in zip(maps[:2], sizes, strict=True)
    )
    mixing = np.divide(maps.mixing, largest, out=np.zeros_like(maps.mixing), where=largest > 0)
    return SharedMaps(query, key, mixing)
