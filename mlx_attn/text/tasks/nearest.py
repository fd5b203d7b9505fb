"""The task `nearest`: which of some points on a sphere is nearest to another one."""

from functools import cache

import numpy as np
from jaxtyping import Float64, Int64

from mlx_attn.text.tasks.chance import subsets
from mlx_attn.text.tasks.documents import Documents


def points_and_queries(
    random: np.random.Generator, count: int, symbols: int, points: int, queries: int, dimension: int
) -> Documents:
    """Distinct points, then queries, each followed by the nearest of the points.

    The nearest-neighbour target of Amsel, Yehudai and Bruna (arXiv:2407.16153), with the points of
    a fixed codebook: symbol s is a unit vector, the same in every document. Queries are none of the
    points. The symbols after the queries are the answers and alone are scored; the floor is 0.

    Args:
        random: Where the choices come from.
        count: Documents.
        symbols: Symbols of the codebook.
        points: Points of a document.
        queries: Queries of a document.
        dimension: Of the sphere's space.
    """
    chosen = subsets(random, symbols, points + queries, count)
    candidates, asked = chosen[:, :points], chosen[:, points:]
    pairs = np.stack([asked, nearest_of(candidates, asked, codebook(symbols, dimension))], -1)
    places = np.concatenate([candidates, pairs.reshape(count, 2 * queries)], axis=1)
    scored = np.zeros(places.shape, bool)
    scored[:, points + 1 :: 2] = True
    names = [f"p{symbol}" for symbol in range(symbols)]
    return Documents(names, places, scored, scored, np.zeros(places.shape))


def nearest_of(
    candidates: Int64[np.ndarray, "D points"],
    asked: Int64[np.ndarray, "D queries"],
    codebook: Float64[np.ndarray, "V dimension"],
) -> Int64[np.ndarray, "D queries"]:
    """The candidate whose vector has the largest inner product with each query's."""
    similarity = codebook @ codebook.T
    found = similarity[asked[:, :, None], candidates[:, None, :]].argmax(axis=-1)
    return np.take_along_axis(candidates, found, axis=1)


@cache
def codebook(symbols: int, dimension: int) -> Float64[np.ndarray, "V dimension"]:
    """The unit vectors of the symbols, uniform on the sphere, always the same."""
    vectors = np.random.RandomState(0).standard_normal((symbols, dimension))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
