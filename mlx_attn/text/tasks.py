"""Probing tasks: documents whose best possible loss is known, each made to tell forms apart.

`TASKS` is the table. A document is a row of symbols; a task draws documents from a seed, with the
same numbers on every machine.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float64, Int64

from mlx_attn.errors import ConfigError, find_row
from mlx_attn.records import package_table

Symbols = Int64[np.ndarray, "D L"]
"""Indices into a vocabulary: D documents of L symbols."""

ABILITIES = ("context", "answer")
"""The abilities that scored symbols call for: a context is given, an answer is to be found."""


@dataclass(frozen=True)
class Documents:
    """Documents of one task, all of the same length."""

    symbols: Sequence[str]
    places: Symbols  # each document's symbols, as indices into the vocabulary
    # The symbols that count for the loss; never the first one of a document.
    scored: Bool[np.ndarray, "D L"]
    answers: Bool[np.ndarray, "D L"]  # the ones that the task is about
    # -log p of each symbol given those before it, p being the distribution that the documents are
    # drawn from; 0 if the symbol is not scored.
    nats: Float64[np.ndarray, "D L"]

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the documents as one stream of tokens, with facts about each token.

        A newline, token 0, comes before each document and after the last one, so that a window
        that starts at a newline and is as long as a document and its newline holds all of it.
        Symbol s is token s + 1.
        """
        count, length = self.places.shape
        return {
            "tokens": _stream(self.places + 1),
            "document_starts": np.arange(count) * (length + 1),
            "token_abilities": _stream(self.answers),
            "scored": _stream(self.scored),
        }

    def facts(self) -> dict[str, Any]:
        """Return the floors in nats, of all documents together, and the bytes of their text."""
        answer, everything = float(self.nats[self.answers].sum()), float(self.nats.sum())
        lengths = np.array([1 + len(symbol.encode()) for symbol in self.symbols])
        return {
            "n_bytes": int(lengths[self.places].sum()) + len(self.places) + 1,
            "floor_nats": everything,
            "ability_floor_nats": {"context": everything - answer, "answer": answer},
        }


def _stream(rows: np.ndarray) -> np.ndarray:
    """Join the rows, with a zero before each and after the last."""
    # [D, L] -> [D, 1 + L] -> [D (1 + L) + 1]
    return np.append(np.pad(rows, ((0, 0), (1, 0))).ravel(), rows.dtype.type(0))


def _answers_only(symbols: Sequence[str], places: Symbols, answers: slice) -> Documents:
    """Return documents whose symbols at some places are scored; the others determine them."""
    scored = np.zeros(places.shape, bool)
    scored[:, answers] = True
    return Documents(symbols, places, scored, scored, np.zeros(places.shape))


def _choices(random: np.random.Generator, n: int, shape: tuple[int, ...]) -> np.ndarray:
    """Draw numbers 0 to n - 1, each equally likely, with repetition."""
    return (random.random(shape) * n).astype(np.int64)


def copy(random: np.random.Generator, count: int, vocabulary: int, length: int) -> Documents:
    """Return strings of `length / 2` uniform symbols, each repeated once; `length` is even.

    Every symbol but the first is scored. A symbol of the first half costs log V whatever the model,
    one of the second half nothing: on average (L/2 - 1) / (L - 1) log V, which is 1.7054 nats for
    V = 32 and L = 64. The second half is the answer.
    """
    places = np.tile(_choices(random, vocabulary, (count, length // 2)), 2)
    answers, scored = np.zeros(places.shape, bool), np.ones(places.shape, bool)
    answers[:, length // 2 :] = True
    scored[:, 0] = False
    nats = np.where(scored & ~answers, np.log(vocabulary), 0.0)
    return Documents([str(symbol) for symbol in range(vocabulary)], places, scored, answers, nats)


def recall(
    random: np.random.Generator, count: int, keys: int, values: int, pairs: int, shift: int = 0
) -> Documents:
    """Return pairs of a key and a value, then each key again, in another order, with its value.

    Multi-query associative recall (Arora et al., arXiv:2312.04927). The keys of a document are
    distinct; the values are drawn with repetition. Only the values after the second keys, the
    answers, are scored, so the floor is 0.

    With a `shift`, a query q asks for the value of the key pi(q) = q + shift modulo the number of
    keys. For 1, pi is a cycle: it moves every key and is not its own inverse, so no symmetric
    similarity of symbols finds pi(q) and not the key that q asks for in its turn. Any other cycle
    is the same task with the symbols renamed.
    """
    # [D, pairs]: keys, their values, and the order in which the keys return.
    chosen = random.random((count, keys)).argsort(axis=1)[:, :pairs]
    paired = _choices(random, values, (count, pairs))
    order = random.random((count, pairs)).argsort(axis=1)
    asked = np.take_along_axis((chosen - shift) % keys, order, axis=1)
    answers = np.take_along_axis(paired, order, axis=1)
    halves = np.stack([chosen, keys + paired], -1), np.stack([asked, keys + answers], -1)
    # Twice [D, pairs, 2] -> [D, 2 pairs, 2] -> [D, 4 pairs]
    places = np.concatenate(halves, axis=1).reshape(count, 4 * pairs)
    symbols = [f"k{key}" for key in range(keys)] + [f"v{value}" for value in range(values)]
    return _answers_only(symbols, places, slice(2 * pairs + 1, None, 2))


def products(
    random: np.random.Generator, count: int, points: int, factors: int, groups: int
) -> Documents:
    """Return groups of random permutations, each followed by the product of its permutations.

    State tracking (Merrill and others, arXiv:2404.08819): the product of permutations of `points`
    points depends on their order; for 2 points it is a parity. A product contains nothing about the
    next group, so no answer helps with another. Only the products are scored, as answers, so the
    floor is 0.
    """
    permutations = np.array([*itertools.permutations(range(points))])
    numbers = {tuple(row): number for number, row in enumerate(permutations.tolist())}
    drawn = _choices(random, len(permutations), (count, groups, factors))
    # [D, groups, points]: the image of each point so far, at first the point itself.
    state = np.broadcast_to(np.arange(points), (count, groups, points))
    for step in range(factors):
        state = np.take_along_axis(state, permutations[drawn[..., step]], axis=-1)
    answers = [numbers[tuple(row)] for row in state.reshape(-1, points).tolist()]
    answered = len(permutations) + np.array(answers).reshape(count, groups, 1)
    places = np.concatenate([drawn, answered], axis=-1).reshape(count, groups * (factors + 1))
    names = ["".join(map(str, row)) for row in permutations.tolist()]
    symbols = [*names, *(f"={name}" for name in names)]
    return _answers_only(symbols, places, slice(factors, None, factors + 1))


_STREAM = 0x7461736B  # keeps these random numbers apart from others drawn with the same seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A probing task."""

    name: str  # its name for `--data`, with the sizes that differ from the default
    summary: str  # a document, in one line
    separates: str  # the forms of attention that it is predicted to tell apart, in one sentence
    # Makes documents, from a random generator, their number and the sizes.
    generate: Callable[..., Documents]
    sizes: Mapping[str, Any]  # arguments of `generate`
    length: int  # symbols of a document
    steps: int  # with the `RECIPE`, enough to solve it

    @property
    def fit(self) -> dict[str, Any]:
        """The settings that every training on it needs: its tokenizer, and room for a document."""
        return {"data": self.name, "tokenizer": "symbols", "context_length": self.length + 1}

    @property
    def settings(self) -> dict[str, Any]:
        """Its default settings."""
        return {**RECIPE, "steps": self.steps, **self.fit}

    def draw(
        self, count: int, split: Literal["train", "val"] = "train", seed: int = 0
    ) -> Documents:
        """Draw documents of its sizes; each split of a seed has its own stream of random numbers.

        Raises:
            ConfigError: The sizes do not fit together.
        """
        bits = np.random.Philox(key=np.array([2 * seed + (split == "val"), _STREAM], np.uint64))
        name = self.name.partition(":")[0]
        try:
            return self.generate(np.random.Generator(bits), count, **self.sizes)
        except (IndexError, TypeError, ValueError) as error:  # more pairs than keys, for example
            raise ConfigError(f"{name}: no documents have the sizes {self.sizes}") from error


_GENERATORS: dict[str, Callable[..., Documents]] = {
    "copy": copy,
    "recall": recall,
    "permuted-recall": partial(recall, shift=1),
    "parity": products,
}

_TABLES = package_table("mlx_attn.text", "tasks")

RECIPE: dict[str, Any] = _TABLES["recipe"]
"""The default settings of every task."""

TASKS = {
    name: Task(name=name, generate=generate, **_TABLES["tasks"][name])
    for name, generate in _GENERATORS.items()
}


def task_of(data: str) -> Task | None:
    """Return the task that a value of `--data` names; None if it names none.

    `recall:pairs=16,keys=32` is `recall` with other sizes, which are whole numbers.

    Raises:
        ConfigError: The task lacks a size of that name, or its value is not a whole number above 0
            or does not fit the other sizes.
    """
    name, _, changes = data.partition(":")
    row = TASKS.get(name)
    if row is None or name == data:
        return row
    sizes = {**row.sizes}
    for change in changes.split(","):
        key, _, value = change.partition("=")
        if not value.isdecimal() or value == "0":
            raise ConfigError(f"{name}: a size is a whole number above 0, as in {name}:{key}=4")
        find_row(sizes, key, "size")
        sizes[key] = int(value)
    row = replace(row, name=data, sizes=sizes)
    return replace(row, length=row.draw(1).places.shape[1])
