"""What a head does, in one number each, from the map of its attention weights.

A map A is a T x T matrix: row i is what token i looks at, and adds up to 1. The first row is left
out everywhere, because the first token has nothing but itself to look at.
"""

from dataclasses import dataclass, fields

import numpy as np
from jaxtyping import Float, Float64

Maps = Float[np.ndarray, "*heads T T"]
PerHead = Float64[np.ndarray, "*heads"]


@dataclass(frozen=True, slots=True)
class HeadStatistics:
    """One number per layer and head, averaged over the texts.

    Attributes:
        entropy: -sum_j A_ij ln A_ij in nats, averaged over i: e^entropy tokens are looked at.
        distance: sum_j A_ij (i - j) in tokens, averaged over i.
        previous: A_i,i-1 averaged over i: 1 for a head that always looks one token back.
        first: A_i0 averaged over i: 1 for a head that rests on the first token.
        induction: On a random sequence that is read twice, the weight of the token after the one
            that was the same last time, averaged over the second reading (the prefix-matching score
            of Olsson et al., In-context Learning and Induction Heads, arXiv:2209.11895). NaN where
            the context is too short to read anything twice.
    """

    entropy: Float64[np.ndarray, "L H"]
    distance: Float64[np.ndarray, "L H"]
    previous: Float64[np.ndarray, "L H"]
    first: Float64[np.ndarray, "L H"]
    induction: Float64[np.ndarray, "L H"]


def head_statistics(
    maps: Float[np.ndarray, "L B H T T"], repeated: Float[np.ndarray, "L B2 H T2 T2"]
) -> HeadStatistics:
    """The statistics of every head.

    Args:
        maps: Attention maps of texts of at least two tokens.
        repeated: Maps of texts whose second half repeats the first.
    """
    return HeadStatistics(
        entropy=entropy(maps).mean(1),
        distance=distance(maps).mean(1),
        previous=previous(maps).mean(1),
        first=first(maps).mean(1),
        induction=induction(repeated).mean(1),
    )


def uniform_statistics(T: int, T_repeated: int) -> dict[str, float]:
    """What a head that looks at all tokens so far alike scores: compare with these."""
    maps, repeated = (uniform_map(length)[None, None] for length in (T, T_repeated))
    statistics = head_statistics(maps, repeated)
    return {f.name: getattr(statistics, f.name).item() for f in fields(HeadStatistics)}


def entropy(maps: Maps) -> PerHead:
    """-sum_j A_ij ln A_ij in nats, averaged over i > 0."""
    rows = np.asarray(maps[..., 1:, :], np.float64)
    return 0.0 - np.sum(rows * np.log(np.where(rows > 0, rows, 1)), axis=-1).mean(-1)


def distance(maps: Maps) -> PerHead:
    """sum_j A_ij (i - j) in tokens, averaged over i > 0."""
    position = np.arange(maps.shape[-1])
    back = np.maximum(position[:, None] - position, 0)
    return np.sum(maps[..., 1:, :] * back[1:].astype(np.float64), axis=-1).mean(-1)


def previous(maps: Maps) -> PerHead:
    """A_i,i-1 averaged over i > 0."""
    return _diagonal_mean(maps, -1)


def first(maps: Maps) -> PerHead:
    """A_i0 averaged over i > 0."""
    return maps[..., 1:, 0].astype(np.float64).mean(-1)


def induction(repeated: Maps) -> PerHead:
    """A_i,i-n+1 averaged over the second half i >= n of maps of 2 n tokens; NaN for none."""
    n = repeated.shape[-1] // 2
    if n < 2:
        return np.full(repeated.shape[:-2], np.nan)
    return _diagonal_mean(repeated, 1 - n, skip=1)


def uniform_map(T: int) -> Float64[np.ndarray, "1 T T"]:
    """The map of one head that looks at all tokens so far alike."""
    return np.tril(np.ones((1, T, T))) / np.arange(1, T + 1)[:, None]


def _diagonal_mean(maps: Maps, offset: int, skip: int = 0) -> PerHead:
    """The mean of a diagonal below the main one, less its first entries."""
    diagonal = np.diagonal(maps, offset, -2, -1)[..., skip:]
    return diagonal.astype(np.float64).mean(-1)
