"""What a pair of maps holds twice.

Only products of two maps reach the output, W_1 W_2 = (W_1 B) (B^-1 W_2), so D^2 weights of each
head are free to choose (Wasielewski and Graef, "MatShrink"), and where the key holds all of x, the
value can be made from it (Graef and Wasielewski, arXiv:2503.05840).
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from mlx_attn.errors import ConfigError

LARGEST_CONDITION = 1e5
"""Of an inverted matrix: float32 keeps seven digits, and such a matrix may cost five of them."""


class Shrunk(NamedTuple):
    """A matrix W = basis [I, rest], its columns taken in the order (kept, others).

    Attributes:
        basis: The kept columns of W.
        rest: What multiplies the basis to give the other columns.
        places: Where each column of W is in that order.
    """

    basis: Float[np.ndarray, "D D"]
    rest: Float[np.ndarray, "D others"]
    places: Int[np.ndarray, " C"]


def shrink(W: Float[np.ndarray, "D C"]) -> Shrunk:
    """Take D columns of a wide matrix as the basis of the others: D^2 fewer weights, same product.

    The columns are chosen by QR with column pivoting, so that the basis is well conditioned: the
    next one is always the one that the ones before explain least.

    Raises:
        ConfigError: The rank of W is below D, so that there is no such basis.
    """
    kept = _pivots(W)
    others = np.setdiff1d(np.arange(W.shape[1]), kept)
    basis = W[:, kept]
    _require_invertible(np.linalg.cond(basis), "shrunk", "convert --to separate at a lower --rank")
    places = np.argsort(np.concatenate([kept, others])).astype(np.int32)
    return Shrunk(basis, np.linalg.solve(basis, W[:, others]), places)


def _pivots(W: Float[np.ndarray, "D C"]) -> Int[np.ndarray, " D"]:
    residual, kept = W.copy(), []
    for _ in range(len(W)):
        lengths = np.linalg.norm(residual, axis=0)
        lengths[kept] = -1.0
        column = int(np.argmax(lengths))
        kept.append(column)
        direction = residual[:, column] / (lengths[column] or 1.0)
        residual -= np.outer(direction, direction @ residual)
    return np.array(kept)


def values_from_keys(
    W_key: Float[np.ndarray, "key_width C"], W_value: Float[np.ndarray, "value_width C"]
) -> Float[np.ndarray, "value_width key_width"]:
    """M with W_value = M W_key, as stored weights: v = k M^T without x.

    Args:
        W_key: Stored weight of all key heads together, at least C wide.
        W_value: Stored weight of the value map.

    Raises:
        ConfigError: The keys do not determine x, or hardly; has the condition number.
    """
    width, C = W_key.shape
    if width < C:
        raise ConfigError(
            f"{width} numbers of the key cannot give back emb_dim={C} of x: slim attention needs "
            "n_kv_heads * head_dim of at least emb_dim, so no grouped heads"
        )
    M, _, _, s = np.linalg.lstsq(W_key.T, W_value.T, rcond=None)
    _require_invertible(s[0] / max(s[-1], 1e-300), "slim", "train it longer, or keep the values")
    return M.T


def _require_invertible(condition: float, form: str, way_out: str) -> None:
    if not condition <= LARGEST_CONDITION:
        raise ConfigError(
            f"the {form} form inverts a matrix of W_key or W_value whose condition number is "
            f"{condition:.1e}, above {LARGEST_CONDITION:.0e}: {way_out}"
        )
