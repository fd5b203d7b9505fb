"""Shared query and key maps for heads that were trained apart."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from mlx_attn.convert.factors import balanced_factors, relative_error

SWEEPS = 100
SETTLED = 1e-5
"""A sweep that lowers the relative error by less than this share of it is the last."""
ROUNDING = 1e-13
"""An error that is no error."""
RIDGE = 1e-12
"""Keeps the normal equations solvable where two shared dimensions are the same."""


class SharedMaps(NamedTuple):
    """S_h = query diag(mixing_h) key^T."""

    query: Float[np.ndarray, "rows R"]
    key: Float[np.ndarray, "C R"]
    mixing: Float[np.ndarray, "H R"]

    def product(self) -> Float[np.ndarray, "H rows C"]:
        """The matrices S_h."""
        return (self.query * self.mixing[:, None]) @ self.key.T


def fit_shared_maps(S: Float[np.ndarray, "H rows C"], width: int) -> SharedMaps:
    """Maps of that width, shared by all heads, that give the nearest S_h (arXiv:2006.16362).

    This is the canonical polyadic decomposition of the tensor S. It starts from every head's best
    factors of rank width / H, each mixed in by its own head alone, which is exact where the rank of
    S_h is no more; alternating least squares then solves for one of the three at a time, and goes
    further in the direction of each sweep where that is better still. The error never grows; what
    is found need not be the global optimum.

    Args:
        S: A matrix per head.
        width: Shared width R, a multiple of the number of heads.
    """
    maps, pace = _separate_blocks(S, width), 1.0
    error = relative_error(S, maps.product())
    for _ in range(SWEEPS):
        if error < ROUNDING:
            break
        swept = _sweep(S, maps)
        ahead = _extrapolated(maps, swept, pace)
        found = {relative_error(S, new.product()): new for new in (ahead, swept)}
        previous, error = error, min(found)
        if previous - error < SETTLED * previous:
            break
        maps, pace = found[error], pace * (1.5 if found[error] is ahead else 0.5)
    return _balanced(maps)


def _separate_blocks(S: Float[np.ndarray, "H rows C"], width: int) -> SharedMaps:
    n_heads, rows, C = S.shape
    query, key = balanced_factors(S, width // n_heads)
    return SharedMaps(
        query.swapaxes(0, 1).reshape(rows, width),
        key.reshape(width, C).T,
        np.repeat(np.eye(n_heads), width // n_heads, axis=1),
    )


def _sweep(S: Float[np.ndarray, "H rows C"], maps: SharedMaps) -> SharedMaps:
    """Least squares for the query map, then the key map, then the mixing vectors."""
    _, key, mixing = maps
    towards_query = ((S @ key) * mixing[:, None]).sum(0)
    query = _solve(towards_query, mixing.T @ mixing, key.T @ key)
    towards_key = ((S.swapaxes(1, 2) @ query) * mixing[:, None]).sum(0)
    key = _solve(towards_key, mixing.T @ mixing, query.T @ query)
    towards_mixing = ((S @ key) * query).sum(1)
    mixing = _solve(towards_mixing, query.T @ query, key.T @ key)
    return _balanced(SharedMaps(query, key, mixing))


def _extrapolated(start: SharedMaps, end: SharedMaps, pace: float) -> SharedMaps:
    """As much further than `end` as the pace says, in the direction from `start`."""
    return SharedMaps(*(b + pace * (b - a) for a, b in zip(start, end, strict=True)))


def _solve(
    right: Float[np.ndarray, "rows R"],
    gram: Float[np.ndarray, "R R"],
    other_gram: Float[np.ndarray, "R R"],
) -> Float[np.ndarray, "rows R"]:
    normal = gram * other_gram
    ridge = RIDGE * np.trace(normal) / len(normal)
    return np.linalg.solve(normal + ridge * np.eye(len(normal)), right.T).T


def _balanced(maps: SharedMaps) -> SharedMaps:
    """The same product, with query and key equally large and mixing vectors within 1 of 0."""
    largest = np.abs(maps.mixing).max(axis=0)
    sizes = np.linalg.norm(maps.query, axis=0), np.linalg.norm(maps.key, axis=0)
    shared = np.sqrt(sizes[0] * sizes[1] * largest)
    query, key = (
        matrix * np.divide(shared, size, out=np.zeros_like(shared), where=size > 0)
        for matrix, size in zip(maps[:2], sizes, strict=True)
    )
    mixing = np.divide(maps.mixing, largest, out=np.zeros_like(maps.mixing), where=largest > 0)
    return SharedMaps(query, key, mixing)
