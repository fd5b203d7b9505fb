"""Exact solvers: for each task, the distribution of the next symbol given those before it.

They know the task and nothing of how its documents are made.
"""

from collections.abc import Callable, Sequence

from mlx_attn.text.tasks import TASKS


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
    "parity": solve_products("parity"),
}
