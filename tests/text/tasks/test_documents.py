"""Every task: documents of one length, drawn from a seed, with a floor that its solver reaches."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_attn.errors import ConfigError
from mlx_attn.text.tasks import TASKS, task_of

tasks = pytest.mark.parametrize("task", TASKS)

# Exact solvers: the distribution of the next symbol, from the task's rule and the text so far.


def solve_copy(seen: Sequence[str], symbols: Sequence[str]) -> dict[str, float]:
    """Return, in the second half, the symbol half a document earlier; before, all symbols."""
    half = TASKS["copy"].length // 2
    return {seen[-half]: 1.0} if len(seen) >= half else dict.fromkeys(symbols, 1 / len(symbols))


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


def solve_parity(seen: Sequence[str], symbols: Sequence[str]) -> dict[str, float]:
    """Follow each point through the last group of permutations."""
    factors = TASKS["parity"].sizes["factors"]
    if len(seen) % (factors + 1) != factors:
        return {}
    followed, *others = ([int(point) for point in name] for name in seen[-factors:])
    for permutation in others:
        followed = [followed[point] for point in permutation]
    return {"=" + "".join(map(str, followed)): 1.0}


SOLVERS: dict[str, Callable[[Sequence[str], Sequence[str]], dict[str, float]]] = {
    "copy": solve_copy,
    "recall": solve_recall,
    "permuted-recall": solve_permuted_recall,
    "parity": solve_parity,
}


@tasks
def test_the_exact_solver_pays_the_floor_for_every_symbol(task):
    documents = TASKS[task].draw(20, "val")
    for places, scored, nats in zip(
        documents.places, documents.scored, documents.nats, strict=True
    ):
        text = [documents.symbols[int(place)] for place in places]
        for t in np.flatnonzero(scored):
            paid = -math.log(SOLVERS[task](text[:t], documents.symbols)[text[t]])
            assert paid == pytest.approx(nats[t], abs=1e-12)


@tasks
@settings(max_examples=20)
@given(seed=st.integers(0, 2**31), count=st.integers(1, 30))
def test_documents_have_one_length_and_are_scored_after_their_first_symbol(task, seed, count):
    documents = TASKS[task].draw(count, seed=seed)
    assert documents.places.shape == (count, TASKS[task].length)
    assert 0 <= documents.places.min() <= documents.places.max() < len(documents.symbols)
    assert documents.scored.any(axis=1).all()
    assert not documents.scored[:, 0].any()
    assert not (documents.answers & ~documents.scored).any()
    assert not documents.nats[~documents.scored].any()
    assert (documents.nats >= 0).all()


@tasks
def test_the_same_seed_draws_the_same_documents_and_a_split_or_seed_of_its_own_others(task):
    first, again = (TASKS[task].draw(9, seed=3) for _ in range(2))
    assert np.array_equal(first.places, again.places)
    for other in (TASKS[task].draw(9, seed=4), TASKS[task].draw(9, "val", 3)):
        assert not (other.places == first.places).all(axis=1).any()


@tasks
def test_the_stream_is_the_documents_each_after_a_newline(task):
    documents = TASKS[task].draw(4)
    arrays, length = documents.arrays(), TASKS[task].length
    assert {len(array) for name, array in arrays.items() if name != "document_starts"} == {
        4 * (length + 1) + 1
    }
    for i, start in enumerate(arrays["document_starts"]):
        stream = {name: array[start + 1 : start + 1 + length] for name, array in arrays.items()}
        assert arrays["tokens"][start] == 0
        assert np.array_equal(stream["tokens"] - 1, documents.places[i])
        assert np.array_equal(stream["scored"], documents.scored[i])
        assert np.array_equal(stream["token_abilities"], documents.answers[i])


def test_a_name_with_sizes_is_a_task_with_documents_of_those_sizes():
    task = task_of("recall:pairs=3,keys=5")
    assert task
    assert (task.fit["data"], task.fit["context_length"]) == ("recall:pairs=3,keys=5", 13)
    documents = task.draw(10, "val")
    assert documents.places.shape == (10, 12)
    assert {*documents.places[:, 0:6:2].ravel()} <= {*range(5)}
    assert task_of("tales") is None
    assert task_of("notes:1.txt") is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("recall:pairs=65", "recall: no documents have the sizes"),  # of 64 keys
        ("recall:pair=4", "unknown size 'pair'"),
        ("recall:pairs=0", "a size is a whole number above 0, as in recall:pairs=4"),
        ("recall:pairs=two", "a size is a whole number above 0"),
    ],
)
def test_sizes_without_documents_are_refused(name, message):
    with pytest.raises(ConfigError) as caught:
        task_of(name)
    assert message in str(caught.value)
