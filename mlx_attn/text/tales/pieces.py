"""The pieces a story is made of; each can be told (sampled) and read (followed in every way).

Reading does not share the arithmetic of telling: it multiplies exact fractions of integer weights,
where telling adds up logarithms computed in advance. The two are tested against each other.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import log
from typing import NamedTuple, Protocol, runtime_checkable

from mlx_attn.errors import ConfigError
from mlx_attn.text.tales.words import COPY, FREE, GRAMMAR, Variable, Word, ambiguities


class Fragment(NamedTuple):
    """A stretch of text that calls for one ability, with its log-probability in nats.

    `marks` holds the index of the ability once for each byte.
    """

    text: str
    ability: int
    marks: bytes
    log_probability: float
    referent: str


def fragment(text: str, ability: int, log_probability: float = 0.0, referent: str = "") -> Fragment:
    """A fragment; `referent` names the variable that it mentions, if any."""
    return Fragment(text, ability, bytes([ability]) * len(text), log_probability, referent)


class Telling(NamedTuple):
    """A story being told; `draw` gives uniform numbers in [0, 1)."""

    fragments: list[Fragment]
    bound: dict[str, Word]
    draw: Callable[[], float]


@dataclass(frozen=True, slots=True)
class Reading:
    """One derivation as far as it was followed: its text, bound variables and exact probability.

    If `target` is not None, the text must be a prefix of it.
    """

    text: str
    bound: Mapping[str, Word]
    probability: Fraction
    target: str | None = None

    def say(self, text: str) -> Iterator["Reading"]:
        """This reading continued by a text, if the target allows it."""
        if self.target is None or self.target.startswith(text, len(self.text)):
            yield Reading(self.text + text, self.bound, self.probability, self.target)

    def choose(self, probability: Fraction) -> "Reading":
        """This reading after a choice of that probability."""
        return Reading(self.text, self.bound, self.probability * probability, self.target)

    def bind(self, name: str, word: Word) -> "Reading":
        """This reading with a variable bound to a word."""
        return Reading(self.text, {**self.bound, name: word}, self.probability, self.target)


@runtime_checkable
class Piece(Protocol):
    """A part of a template."""

    def tell(self, telling: Telling) -> None:
        """Append the piece's fragments, making its choices at random."""
        ...

    def read(self, reading: Reading) -> Iterator[Reading]:
        """Every way to continue a reading through this piece."""
        ...


def read_all(pieces: tuple[Piece, ...], reading: Reading) -> Iterator[Reading]:
    """Every way to continue a reading through pieces in a row."""
    if not pieces:
        yield reading
        return
    for after in pieces[0].read(reading):
        yield from read_all(pieces[1:], after)


@dataclass(frozen=True)
class Say:
    """A fixed text."""

    said: Fragment

    def tell(self, telling: Telling) -> None:  # noqa: D102
        telling.fragments.append(self.said)

    def read(self, reading: Reading) -> Iterator[Reading]:  # noqa: D102
        return reading.say(self.said.text)


class Pick:
    """Binds a variable to a word, chosen by weight among those allowed, and says one form of it."""

    def __init__(self, name: str, variable: Variable, form: str) -> None:
        self.name, self.variable, self.form = name, variable, form
        self._tables: dict[tuple[Word, ...], list[tuple[Word, Fragment]]] = {}
        for first, second in ambiguities([word.form(form) for word in variable.lexicon.words]):
            raise ConfigError(f"{{{name}}}: the word {first!r} also begins {second!r}; rename one")

    def tell(self, telling: Telling) -> None:  # noqa: D102
        key = self.variable.key(telling.bound)
        table = self._tables.get(key) or self._tabulate(key)
        word, said = table[int(telling.draw() * len(table))]
        telling.bound[self.name] = word
        telling.fragments.append(said)

    def read(self, reading: Reading) -> Iterator[Reading]:  # noqa: D102
        words = self.variable.candidates(self.variable.key(reading.bound))
        total = sum(word.weight for word in words)
        for word in words:
            chosen = reading.choose(Fraction(word.weight, total)).bind(self.name, word)
            yield from chosen.say(word.form(self.form))

    def _tabulate(self, key: tuple[Word, ...]) -> list[tuple[Word, Fragment]]:
        """Each candidate as often as its weight says, so that one uniform number picks it."""
        words = self.variable.candidates(key)
        total = sum(word.weight for word in words)
        ability = self.variable.determined if len(words) == 1 else FREE
        table = self._tables[key] = []
        for word in words:
            said = fragment(word.form(self.form), ability, log(word.weight / total), self.name)
            table += [(word, said)] * word.weight
        return table


class Show:
    """Says a form of the word that a variable is bound to."""

    def __init__(self, name: str, variable: Variable, form: str) -> None:
        self.name, self.form = name, form
        ability = variable.lexicon.ability(form)
        self._said = {
            word: fragment(word.form(form), ability, 0.0, name) for word in variable.lexicon.words
        }

    def tell(self, telling: Telling) -> None:  # noqa: D102
        telling.fragments.append(self._said[telling.bound[self.name]])

    def read(self, reading: Reading) -> Iterator[Reading]:  # noqa: D102
        return reading.say(reading.bound[self.name].form(self.form))


@dataclass(frozen=True)
class Note:
    """Says some pieces and remembers the whole text, to be repeated word for word."""

    name: str
    pieces: tuple[Piece, ...]

    def tell(self, telling: Telling) -> None:  # noqa: D102
        start = len(telling.fragments)
        for piece in self.pieces:
            piece.tell(telling)
        telling.bound[self.name] = Word("".join([said.text for said in telling.fragments[start:]]))

    def read(self, reading: Reading) -> Iterator[Reading]:  # noqa: D102
        for after in read_all(self.pieces, reading):
            yield after.bind(self.name, Word(after.text[len(reading.text) :]))


@dataclass(frozen=True)
class Repeat:
    """Says a remembered text again."""

    name: str

    def tell(self, telling: Telling) -> None:  # noqa: D102
        telling.fragments.append(fragment(telling.bound[self.name].text, COPY, 0.0, self.name))

    def read(self, reading: Reading) -> Iterator[Reading]:  # noqa: D102
        return reading.say(reading.bound[self.name].text)


class Rule:
    """A choice, by integer weights, among options that are told apart by the words they begin with.

    Those words are `free` and carry the log-probability of the choice.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._options: list[tuple[int, tuple[Piece, ...]]] = []
        self._drawn: list[tuple[Piece, ...]] = []

    def fill(self, options: list[tuple[int, tuple[Piece, ...]]]) -> None:
        """Set the options, once; rules may refer to one another before they are filled."""
        self._options = options
        total = sum(weight for weight, _ in options)
        openings = _openings(self.name, [pieces for _, pieces in options])
        for (weight, pieces), opening in zip(options, openings, strict=True):
            free = _split(pieces, opening, log(weight / total))
            self._drawn += [free] * weight

    def tell(self, telling: Telling) -> None:  # noqa: D102
        for piece in self._drawn[int(telling.draw() * len(self._drawn))]:
            piece.tell(telling)

    def read(self, reading: Reading) -> Iterator[Reading]:  # noqa: D102
        total = sum(weight for weight, _ in self._options)
        for weight, pieces in self._options:
            yield from read_all(pieces, reading.choose(Fraction(weight, total)))


def _openings(rule: str, options: list[tuple[Piece, ...]]) -> list[str]:
    """The least words with which each option tells itself apart from all others."""
    if len(options) == 1:
        return [""]
    texts = [pieces[0].said.text if isinstance(pieces[0], Say) else "" for pieces in options]
    for first, second in ambiguities(texts):
        raise ConfigError(
            f"<{rule}>: the words {first!r} also begin {second!r}; begin each option with its own"
        )
    return [_distinct(text, [other for other in texts if other != text]) for text in texts]


def _distinct(text: str, others: list[str]) -> str:
    """The fewest whole words at the start of a text that none of the others starts with."""
    ends = [index for index, letter in enumerate(text) if letter == " "] + [len(text)]
    return next(text[:end] for end in ends if not any(o.startswith(text[:end]) for o in others))


def _split(pieces: tuple[Piece, ...], opening: str, log_probability: float) -> tuple[Piece, ...]:
    """The pieces with the opening words of the first one marked as free."""
    if not opening or not isinstance(pieces[0], Say):
        return pieces
    rest = pieces[0].said.text[len(opening) :]
    free = Say(fragment(opening, FREE, log_probability))
    return (free, *([Say(fragment(rest, GRAMMAR))] if rest else []), *pieces[1:])
