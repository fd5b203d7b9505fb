"""Exact solvers: for each task, the distribution of the next symbol given those before it.

They know the task and nothing of how its documents are made: lookups in the document so far, and
the posterior predictive of the Markov chain, counted one step at a time.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from mlx_attn.text.tasks import TASKS, codebook


def solve_copy(seen: Sequence[str], symbols: Sequence[str]) -> dict[str, float]:
    """In the second half what stands half a document back, before anything."""
    half = TASKS["copy"].length // 2
    if len(seen) >= half:
        return {seen[len(seen) - half]: 1.0}
    return dict.fromkeys(symbols, 1 / len(symbols))


def solve_recall(seen: Sequence[str], symbols: Sequence[str]) -> dict[str, float]:
    """The value after the first time of the last key."""
    return {seen[seen.index(seen[-1]) + 1]: 1.0} if seen[-1] in seen[:-1] else {}


def solve_permuted_recall(seen: Sequence[str], symbols: Sequence[str]) -> dict[str, float]:
    """The value after the key that follows the last one."""
    keys = TASKS["permuted-recall"].sizes["keys"]
    if len(seen) % 2 == 0 or len(seen) <= 2 * TASKS["permuted-recall"].sizes["pairs"]:
        return {}
    wanted = f"k{(int(seen[-1][1:]) + 1) % keys}"
    pairs = dict(zip(seen[0:16:2], seen[1:16:2], strict=True))
    return {pairs[wanted]: 1.0}


def solve_offsets(seen: Sequence[str], symbols: Sequence[str]) -> dict[str, float]:
    """The digits at the offsets, spelled."""
    offsets: Sequence[int] = TASKS["offsets"].sizes["offsets"]
    if len(seen) % 2 == 0 or len(seen) < max(offsets):
        return {}
    return {"=" + "".join(seen[len(seen) - offset] for offset in offsets): 1.0}


def solve_markov(seen: Sequence[str], symbols: Sequence[str]) -> dict[str, float]:
    """How often each state followed the last one so far, and one more."""
    followed = Counter(b for a, b in itertools.pairwise(seen) if a == seen[-1])
    total = sum(followed.values()) + len(symbols)
    return {symbol: (followed[symbol] + 1) / total for symbol in symbols}


def solve_nearest(seen: Sequence[str], symbols: Sequence[str]) -> dict[str, float]:
    """The point at the least distance from the last symbol."""
    sizes = TASKS["nearest"].sizes
    vectors = codebook(sizes["symbols"], sizes["dimension"])
    points = [int(symbol[1:]) for symbol in seen[: sizes["points"]]]
    distances = np.linalg.norm(vectors[points] - vectors[int(seen[-1][1:])], axis=1)
    return {f"p{points[int(distances.argmin())]}": 1.0}


def solve_products(task: str) -> Callable[[Sequence[str], Sequence[str]], dict[str, float]]:
    """Follow each point through the last group of permutations."""
    factors = TASKS[task].sizes["factors"]

    def solve(seen: Sequence[str], symbols: Sequence[str]) -> dict[str, float]:
        if len(seen) % (factors + 1) != factors:
            return {}
        group = [[int(point) for point in name] for name in seen[-factors:]]
        followed = group[0]
        for permutation in group[1:]:
            followed = [followed[point] for point in permutation]
        return {"=" + "".join(map(str, followed)): 1.0}

    return solve


SOLVERS: dict[str, Callable[[Sequence[str], Sequence[str]], dict[str, float]]] = {
    "copy": solve_copy,
    "recall": solve_recall,
    "permuted-recall": solve_permuted_recall,
    "offsets": solve_offsets,
    "markov": solve_markov,
    "nearest": solve_nearest,
    "parity": solve_products("parity"),
}
