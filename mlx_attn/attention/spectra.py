"""What the spectrum of a head's matrix says: how many directions it uses, how large, how symmetric.

Everything is NumPy in float64: it is computed once in a while, and Metal has neither float64 nor a
singular value decomposition.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float64

from mlx_attn.attention.circuits import HeadProducts


@dataclass(frozen=True, slots=True)
class Spectrum:
    """The matrices of one layer's heads, in numbers.

    Attributes:
        singular_values: Largest first.
        effective_rank: See `effective_rank`.
        stable_rank: See `stable_rank`.
        norm: Frobenius norm.
        symmetry: See `symmetry`.
    """

    singular_values: Float64[np.ndarray, "H rank"]
    effective_rank: Float64[np.ndarray, " H"]
    stable_rank: Float64[np.ndarray, " H"]
    norm: Float64[np.ndarray, " H"]
    symmetry: Float64[np.ndarray, " H"]


def spectrum(products: HeadProducts) -> Spectrum:
    """The spectrum of every head's matrix, which must be square."""
    values = products.singular_values()
    return Spectrum(
        values,
        effective_rank(values),
        stable_rank(values),
        np.linalg.norm(values, axis=-1),
        symmetry(products.matrices()),
    )


def effective_rank(
    singular_values: Float[np.ndarray, "H rank"],
) -> Float64[np.ndarray, " H"]:
    """exp(-sum_k p_k ln p_k) with p_k = s_k / sum(s): between 1 and the rank; 0 for the 0 matrix.

    Source: Roy and Vetterli, The Effective Rank, EUSIPCO 2007.
    """
    total = singular_values.sum(-1, keepdims=True)
    p = _ratio(singular_values, total)
    entropy = -np.sum(p * np.log(np.where(p > 0, p, 1)), axis=-1)
    return np.where(total[..., 0] > 0, np.exp(entropy), 0.0)


def stable_rank(
    singular_values: Float[np.ndarray, "H rank"],
) -> Float64[np.ndarray, " H"]:
    """|S|_F^2 / |S|_2^2: between 1 and the rank, and blind to small values; 0 for the 0 matrix.

    Source: Rudelson and Vershynin, Sampling from Large Matrices, J. ACM 2007.
    """
    squares = singular_values**2
    return _ratio(squares.sum(-1), squares[..., 0])


def symmetry(
    matrices: Float[np.ndarray, "H C C"],
) -> Float64[np.ndarray, " H"]:
    """<S, S^T> / |S|_F^2: 1 if symmetric, -1 if antisymmetric, 0 in between (and for 0)."""
    inner = np.einsum("hij,hji->h", matrices, matrices)
    return _ratio(inner, np.sum(matrices**2, axis=(1, 2)))


def alignment(matrices: Float[np.ndarray, "H rows columns"]) -> Float64[np.ndarray, "H H"]:
    """|<S_g, S_h>| / (|S_g|_F |S_h|_F) of every two heads: 1 for the same matrix up to a factor."""
    flat = matrices.reshape(len(matrices), -1)
    norms = np.linalg.norm(flat, axis=1)
    return _ratio(np.abs(flat @ flat.T), np.outer(norms, norms))


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Above / below in float64, and 0 where below is 0."""
    above, below = np.broadcast_arrays(np.asarray(above, np.float64), below)
    return np.divide(above, below, out=np.zeros(above.shape), where=below > 0)
