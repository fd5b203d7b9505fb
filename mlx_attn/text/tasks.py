"""The table of tasks: what each asks, what it is predicted to tell apart, and how to train it."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float64, Int64

from mlx_attn.errors import ConfigError, did_you_mean

RECIPE: dict[str, Any] = {
    "n_layers": 2,
    "n_heads": 4,
    "emb_dim": 64,
    "norm": "rmsnorm",
    "activation": "relu2",
    "bias": False,
    "start": "zero",
    "position": "learned",
    "optimizer": "muon",
    "muon_lr": 0.01,
    "lr": 6e-3,
    "schedule": "trapezoid",
    "warmup": 20,
    "batch_size": 64,
    "eval_every": 100,
}
"""What every task is trained with, 2 layers of width 64, where nothing else is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A probing task.

    Attributes:
        name: What `--data` calls it.
        summary: What a document is, in one line.
        separates: Which forms of attention it is predicted to tell apart, in one sentence.
        sizes: Arguments of its generator.
        length: Symbols of a document.
        steps: With the `RECIPE`, enough to solve it: about a minute of a laptop's processor.
    """

    name: str
    summary: str
    separates: str
    sizes: Mapping[str, Any]
    length: int
    steps: int = 600

    @property
    def fit(self) -> dict[str, Any]:
        """What every training on it needs: its own tokenizer, and room for one document."""
        return {"data": self.name, "tokenizer": "symbols", "context_length": self.length + 1}

    @property
    def settings(self) -> dict[str, Any]:
        """The settings to train it with where nothing else is said."""
        return {**RECIPE, "steps": self.steps, **self.fit}


_TASKS = (
    Task(
        name="copy",
        summary="a random string, then the same string again",
        separates=(
            "one layer from two, with --position alibi or none; with learned positions every form "
            "solves it by looking back a fixed distance, which makes it a control"
        ),
        sizes={"vocabulary": 32, "length": 64},
        length=64,
        steps=300,
    ),
    Task(
        name="recall",
        summary="pairs of a key and a value, then each key again: which value went with it?",
        separates=(
            "rank: factored scores lose keys as heads get narrower, merged scores of full rank "
            "do not; nobody loses with one head"
        ),
        sizes={"keys": 64, "values": 64, "pairs": 8},
        length=32,
    ),
    Task(
        name="permuted-recall",
        summary="as recall, but a query q asks for the value of the key after q",
        separates=(
            "asymmetry: with shared query and key a symbol is most similar to itself, which is the "
            "wrong key; every other form finds the right one"
        ),
        sizes={"keys": 16, "values": 16, "pairs": 8},
        length=32,
    ),
    Task(
        name="offsets",
        summary="digits, each followed by the number that the digits 1, 5 and 11 places back spell",
        separates=(
            "the number of heads: one head mixes the three places into one average, three heads "
            "read them apart"
        ),
        sizes={"base": 4, "numbers": 24, "offsets": (1, 5, 11)},
        length=48,
        steps=400,
    ),
    Task(
        name="markov",
        summary="a Markov chain of three states with transition probabilities of its own",
        separates=(
            "little at the end, more on the way: all forms pass from uniform (1.0986) over "
            "single-state frequencies to the Bayes optimum, one after a longer plateau than another"
        ),
        sizes={"states": 3, "length": 100},
        length=100,
        steps=300,
    ),
    Task(
        name="nearest",
        summary="points of a sphere, then queries: which of the points is nearest?",
        separates=(
            "one head of full rank from many narrow ones: heads narrower than the sphere's space "
            "misjudge distances"
        ),
        sizes={"symbols": 32, "points": 8, "queries": 8, "dimension": 16},
        length=24,
        steps=800,
    ),
)

TASKS: dict[str, Task] = {task.name: task for task in _TASKS}


def choices(
    random: np.random.Generator, n: int, shape: tuple[int, ...]
) -> Int64[np.ndarray, "..."]:
    """Numbers 0 to n - 1, each equally likely, with repetition."""
    return (random.random(shape) * n).astype(np.int64)


def subsets(
    random: np.random.Generator, n: int, size: int, count: int
) -> Int64[np.ndarray, "count size"]:
    """`count` times `size` distinct ones of the numbers 0 to n - 1, in random order."""
    return random.random((count, n)).argsort(axis=1)[:, :size]


def orders(
    random: np.random.Generator, items: Int64[np.ndarray, "count size"]
) -> Int64[np.ndarray, "count size"]:
    """The items of each row in a random order."""
    return np.take_along_axis(items, random.random(items.shape).argsort(axis=1), axis=1)


def simplex(random: np.random.Generator, shape: tuple[int, ...]) -> Float64[np.ndarray, "..."]:
    """Distributions along the last axis, uniform over all distributions: Dirichlet(1, ..., 1)."""
    waits = -np.log1p(-random.random(shape))
    return waits / waits.sum(axis=-1, keepdims=True)


ABILITIES = ("context", "answer")
"""What a scored symbol calls for: it is given, or it is the answer that the task is about."""


@dataclass(frozen=True)
class Documents:
    """Documents of one task, all of the same length.

    Attributes:
        symbols: The vocabulary.
        places: Each document's symbols, as indices into the vocabulary.
        scored: The symbols that count for the loss; never the first one of a document.
        answers: Those of them that the task is about.
        nats: -log p of each symbol given those before it, p being the distribution that the
            documents are drawn from; 0 where the symbol is not scored.
    """

    symbols: Sequence[str]
    places: Int64[np.ndarray, "D L"]
    scored: Bool[np.ndarray, "D L"]
    answers: Bool[np.ndarray, "D L"]
    nats: Float64[np.ndarray, "D L"]

    @property
    def floor(self) -> float:
        """The floor in nats per scored symbol: no model's expected loss is lower."""
        return float(self.nats.sum() / self.scored.sum())

    def arrays(self) -> dict[str, np.ndarray]:
        """The documents as one stream of tokens, and what is known of each token.

        A newline, token 0, stands before each document and after the last one, so that a window
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
        """The floors in nats, of all documents together, and the bytes of their text."""
        answer, everything = float(self.nats[self.answers].sum()), float(self.nats.sum())
        lengths = np.array([1 + len(symbol.encode()) for symbol in self.symbols])
        return {
            "n_bytes": int(lengths[self.places].sum()) + len(self.places) + 1,
            "floor_nats": everything,
            "ability_floor_nats": {"context": everything - answer, "answer": answer},
        }


def _stream(rows: np.ndarray) -> np.ndarray:
    """Rows one after the other, with a zero before each and after the last."""
    return np.append(np.pad(rows, ((0, 0), (1, 0))).ravel(), rows.dtype.type(0))


def repeated_strings(
    random: np.random.Generator, count: int, vocabulary: int, length: int
) -> Documents:
    """Strings of `length / 2` uniform symbols, each repeated once.

    Every symbol but the first is scored. A symbol of the first half costs log V whatever the model,
    one of the second half nothing: on average (L/2 - 1) / (L - 1) log V, which is 1.7054 nats for
    V = 32 and L = 64. The second half is the answer.

    Args:
        random: Where the choices come from.
        count: Documents.
        vocabulary: Symbols V.
        length: Symbols L of a document, an even number.
    """
    half = choices(random, vocabulary, (count, length // 2))
    places = np.tile(half, 2)
    answers = np.zeros(places.shape, bool)
    answers[:, length // 2 :] = True
    scored = np.ones(places.shape, bool)
    scored[:, 0] = False
    nats = np.where(scored & ~answers, np.log(vocabulary), 0.0)
    return Documents([str(symbol) for symbol in range(vocabulary)], places, scored, answers, nats)


_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def random_chains(random: np.random.Generator, count: int, states: int, length: int) -> Documents:
    """Markov chains, each of its own transition matrix with rows drawn from Dirichlet(1, ..., 1).

    In-context learning of Markov chains (Edelman et al., arXiv:2402.11004). All transitions are
    scored. Their floor is the loss of the Bayes optimum on these very documents; see `bayes_nats`.

    Args:
        random: Where the choices come from.
        count: Documents.
        states: States, at most 26.
        length: States that a chain goes through.
    """
    bounds = simplex(random, (count, states, states)).cumsum(axis=-1)[..., :-1]
    places = np.empty((count, length), np.int64)
    places[:, 0] = choices(random, states, (count,))
    for t in range(1, length):
        row = bounds[np.arange(count), places[:, t - 1]]
        places[:, t] = (random.random((count, 1)) >= row).sum(axis=-1)
    scored = np.ones(places.shape, bool)
    scored[:, 0] = False
    return Documents(_LETTERS[:states], places, scored, scored, bayes_nats(places, states))


def bayes_nats(places: Int64[np.ndarray, "D L"], states: int) -> Float64[np.ndarray, "D L"]:
    """-log of the posterior predictive probability of each transition; 0 for the first state.

    Under a Dirichlet(1, ..., 1) prior, after n_ij transitions from i to j,

        p(j | i) = (n_ij + 1) / (sum_k n_ik + states)
    """
    documents = np.arange(len(places))
    seen = np.ones((len(places), states, states))
    nats = np.zeros(places.shape)
    for t in range(1, places.shape[1]):
        row = seen[documents, places[:, t - 1]]
        nats[:, t] = np.log(row.sum(axis=-1) / row[documents, places[:, t]])
        seen[documents, places[:, t - 1], places[:, t]] += 1
    return nats


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


def spelled_numbers(
    random: np.random.Generator, count: int, base: int, numbers: int, offsets: Sequence[int]
) -> Documents:
    """Random digits, each followed by the number that digits at given distances before it spell.

    Digits stand at the even places of a document, numbers at the odd ones:

        y_t = sum_i base^(m - i) x_(t - offset_i),   i = 1, 2, ..., m

    One symbol stands for the whole number, so all m digits must be known at once, and each with its
    offset. Numbers whose digits all lie in the document are the answers and alone are scored, so
    the floor is 0; in the others what is missing counts as 0.

    Args:
        random: Where the choices come from.
        count: Documents.
        base: The digits are 0 to one less.
        numbers: Digits of a document, and numbers.
        offsets: The m distances, odd numbers.
    """
    digits = choices(random, base, (count, numbers))
    places = np.stack([digits, base + numbers_of(digits, base, offsets)], -1)
    scored = np.zeros(places.shape, bool)
    scored[:, max(offsets) // 2 :, 1] = True
    places, scored = (array.reshape(count, 2 * numbers) for array in (places, scored))
    spelled = ["=" + "".join(d) for d in itertools.product(_digits(base), repeat=len(offsets))]
    return Documents([*_digits(base), *spelled], places, scored, scored, np.zeros(places.shape))


def numbers_of(
    digits: Int64[np.ndarray, "D numbers"], base: int, offsets: Sequence[int]
) -> Int64[np.ndarray, "D numbers"]:
    """The number that follows each digit."""
    total = np.zeros_like(digits)
    for offset in offsets:
        back = offset // 2  # digits
        total *= base
        total[:, back:] += digits[:, : digits.shape[1] - back]
    return total


def _digits(base: int) -> list[str]:
    return [str(digit) for digit in range(base)]


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


_STREAM = 0x7461736B  # keeps these random numbers apart from others drawn with the same seed
_GENERATORS: dict[str, Callable[..., Documents]] = {
    "copy": repeated_strings,
    "recall": key_value_pairs,
    "permuted-recall": permuted_key_value_pairs,
    "offsets": spelled_numbers,
    "markov": random_chains,
    "nearest": points_and_queries,
}


def draw(
    task: str, count: int, seed: int = 0, split: Literal["train", "val"] = "train", **sizes: Any
) -> Documents:
    """Documents of a task.

    Args:
        task: A name in `TASKS`.
        count: How many documents.
        seed: Not negative.
        split: The two splits of a seed come from different random streams.
        sizes: Sizes other than those of `Task.sizes`.

    Raises:
        ConfigError: There is no such task, split or size, or a number is out of range.
    """
    if task not in TASKS:
        raise ConfigError(f"unknown task '{task}'{did_you_mean(task, TASKS)}")
    if split not in ("train", "val"):
        raise ConfigError(f"tasks have no split {split!r}; choose train or val")
    if count < 1 or seed < 0:
        raise ConfigError(f"count={count} must be at least 1, and seed={seed} at least 0")
    if unknown := set(sizes) - set(TASKS[task].sizes):
        raise ConfigError(f"{task} has no size {unknown.pop()!r}; it has {[*TASKS[task].sizes]}")
    bits = np.random.Philox(key=np.array([2 * seed + (split == "val"), _STREAM], np.uint64))
    return _GENERATORS[task](np.random.Generator(bits), count, **{**TASKS[task].sizes, **sizes})
