"""The tasks `recall` and `permuted-recall`: look up what stood beside a key."""

import numpy as np
from jaxtyping import Int64

from mlx_attn.text.tasks.chance import choices, orders, subsets
from mlx_attn.text.tasks.documents import Documents


def key_value_pairs(
    random: np.random.Generator, count: int, keys: int, values: int, pairs: int
) -> Documents:
    """Pairs of a key and its value, then each key again, in another order, with its value.

    Multi-query associative recall (Arora et al., arXiv:2312.04927). The keys of a document are
    distinct; the values are drawn with repetition. The values after the second keys are the answers
    and alone are scored, so the floor is 0.

    Args:
        random: Where the choices come from.
        count: Documents.
        keys: Keys to choose from.
        values: Values to choose from.
        pairs: Pairs of a document.
    """
    chosen = subsets(random, keys, pairs, count)
    return _pairs_then_queries(random, chosen, chosen, keys, values)


def permuted_key_value_pairs(
    random: np.random.Generator, count: int, keys: int, values: int, pairs: int
) -> Documents:
    """As `key_value_pairs`, but a query q asks for the value of the key pi(q).

    pi is the cycle pi(q) = q + 1 modulo the number of keys: it has no fixed point and is not its
    own inverse, so no symmetric similarity of symbols finds pi(q) and not the key that q asks for
    in its turn. Any other cycle is the same task with the symbols renamed.

    Args:
        random: Where the choices come from.
        count: Documents.
        keys: Keys to choose from.
        values: Values to choose from.
        pairs: Pairs of a document.
    """
    chosen = subsets(random, keys, pairs, count)
    return _pairs_then_queries(random, chosen, (chosen - 1) % keys, keys, values)


def _pairs_then_queries(
    random: np.random.Generator,
    chosen: Int64[np.ndarray, "D pairs"],
    queries: Int64[np.ndarray, "D pairs"],
    keys: int,
    values: int,
) -> Documents:
    """Documents whose queries, one for each chosen key, come in a random order."""
    count, pairs = chosen.shape
    given = choices(random, values, (count, pairs))
    order = orders(random, np.tile(np.arange(pairs), (count, 1)))
    asked, answers = (np.take_along_axis(array, order, axis=1) for array in (queries, given))
    halves = np.stack([chosen, keys + given], -1), np.stack([asked, keys + answers], -1)
    places = np.concatenate(halves, axis=1).reshape(count, 4 * pairs)
    scored = np.zeros(places.shape, bool)
    scored[:, 2 * pairs + 1 :: 2] = True
    symbols = [f"k{key}" for key in range(keys)] + [f"v{value}" for value in range(values)]
    return Documents(symbols, places, scored, scored, np.zeros(places.shape))
