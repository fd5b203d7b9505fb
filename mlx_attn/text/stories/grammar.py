"""Words with their forms, lexicons of words, and the variables of a story that are bound to words.

A variable is what a story remembers: its hero, the lost thing, how many plums are left. Which words
it may take can depend on the variables bound before it (a friend is not the hero; what is left is a
difference), and the choice is renormalised exactly.
"""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import log
from typing import NamedTuple, Protocol, runtime_checkable

from mlx_attn.errors import ConfigError

ABILITIES = ("free", "grammar", "agreement", "recall", "copy", "counting")
"""What it takes to predict a span of text; `TalesText.abilities` indexes this tuple."""

FREE, GRAMMAR, AGREEMENT, RECALL, COPY, COUNTING = range(len(ABILITIES))


@dataclass(frozen=True, eq=False)
class Word:
    """One entry of a lexicon: its plain text, and its other forms by name.

    It is chosen in proportion to its integer weight; a number word also has a value.
    """

    text: str
    forms: Mapping[str, str] = field(default_factory=dict)
    weight: int = 1
    value: int = 0

    def form(self, name: str) -> str:
        """The text of one form; the empty name is the plain text."""
        return self.forms[name] if name else self.text


@dataclass(frozen=True, eq=False)
class Lexicon:
    """Words that may stand for one another.

    `abilities` says what it takes to predict each of their forms, `recall` where it does not.
    """

    words: tuple[Word, ...]
    abilities: Mapping[str, int] = field(default_factory=dict)

    def ability(self, form: str) -> int:
        """What it takes to predict this form of a word that was mentioned before."""
        return self.abilities.get(form, RECALL)


def _anything(word: Word, *_: Word) -> bool:
    return True


@dataclass(frozen=True, eq=False)
class Variable:
    """What a story remembers, and which words it may be bound to.

    A word is a candidate if `allowed(word, *given)` holds, `given` being the words bound to the
    variables so named (those not bound are left out). Where a single candidate remains, nothing is
    free: its text calls for the ability `determined`.
    """

    lexicon: Lexicon
    given: tuple[str, ...] = ()
    allowed: Callable[..., bool] = _anything
    determined: int = FREE

    def key(self, bound: Mapping[str, Word]) -> tuple[Word, ...]:
        """The words on which the candidates depend."""
        return tuple([bound[name] for name in self.given if name in bound])

    def candidates(self, key: tuple[Word, ...]) -> tuple[Word, ...]:
        """The words that this variable may take, given the words it depends on."""
        found = tuple(word for word in self.lexicon.words if self.allowed(word, *key))
        if not found:
            raise ConfigError(f"no word is allowed after {[word.text for word in key]}")
        return found


def unlike(lexicon: Lexicon, *others: str) -> Variable:
    """A variable that differs from the variables named in `others`."""
    return Variable(lexicon, others, lambda word, *taken: word not in taken)


def ambiguities(texts: list[str]) -> Iterator[tuple[str, str]]:
    """Pairs of which the second text begins with the first, so that a reader cannot choose."""
    # Sorted, a text is followed at once by those that extend it.
    return ((a, b) for a, b in itertools.pairwise(sorted(texts)) if b.startswith(a))


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


_MARK = re.compile(
    r"\{(?P<article>[aA] )?(?P<new>new )?(?P<name>\w+)(\.(?P<form>\w+))?\}"
    r"|<(?P<rule>\w+)>|\[(?P<note>\w+): |(?P<close>\])"
)
_REMEMBERED = re.compile(r"\[(\w+): ")
_WEIGHT = re.compile(r"(?:(\d+) \* )?(.*)")


class Grammar:
    """Rules, and the variables they speak of; a text is the rule `start`, then `terminator`."""

    def __init__(
        self,
        rules: Mapping[str, str],
        variables: Mapping[str, Variable],
        start: str,
        terminator: str = "",
    ) -> None:
        self._variables = variables
        self._remembered = set(_REMEMBERED.findall(" ".join(rules.values())))
        self._rules = {name: Rule(name) for name in rules}
        for name, template in rules.items():
            self._rules[name].fill([self._option(text) for text in template.split("|")])
        self._pieces: tuple[Piece, ...] = (self._rules[start], *_say(terminator))

    def tell(self, draw: Callable[[], float]) -> list[Fragment]:
        """One text drawn at random, as fragments; `draw` gives uniform numbers in [0, 1)."""
        telling = Telling([], {}, draw)
        for piece in self._pieces:
            piece.tell(telling)
        return telling.fragments

    def derivations(self, text: str) -> list[Fraction]:
        """The exact probability of every derivation of a text: of one, or none at all."""
        readings = read_all(self._pieces, Reading("", {}, Fraction(1), text))
        return [reading.probability for reading in readings if reading.text == text]

    def parse(self, text: str) -> float:
        """The log-probability of a text in nats, minus infinity if the grammar cannot tell it."""
        probability = sum(self.derivations(text), Fraction(0))
        return (
            log(probability.numerator) - log(probability.denominator)
            if probability
            else -float("inf")
        )

    def enumerate(self) -> Iterator[tuple[str, Fraction]]:
        """Every derivation of the grammar, as its text and exact probability."""
        for reading in read_all(self._pieces, Reading("", {}, Fraction(1))):
            yield reading.text, reading.probability

    def _option(self, text: str) -> tuple[int, tuple[Piece, ...]]:
        match = _WEIGHT.fullmatch(" ".join(text.split()))
        weight, template = match.groups() if match else ("1", "")
        return int(weight or 1), self._pieces_of(template)

    def _pieces_of(self, template: str) -> tuple[Piece, ...]:
        """The pieces of a template; a remembered text collects its own until its bracket closes."""
        open_notes: list[tuple[str, list[Piece]]] = [("", [])]
        end = 0
        for mark in _MARK.finditer(template):
            open_notes[-1][1].extend(_say(template[end : mark.start()]))
            end = mark.end()
            if mark["note"]:
                open_notes.append((mark["note"], []))
            elif mark["close"]:
                name, pieces = open_notes.pop()
                open_notes[-1][1].append(Note(name, tuple(pieces)))
            else:
                open_notes[-1][1].extend(self._marked(mark))
        return (*open_notes[0][1], *_say(template[end:]))

    def _marked(self, mark: re.Match[str]) -> list[Piece]:
        if mark["rule"]:
            return [self._rule(mark["rule"])]
        name, article = mark["name"], (mark["article"] or "").strip()
        variable = self._variables.get(name)
        if variable is None:
            return [self._repeat(name)]
        if mark["new"]:
            return [Pick(name, variable, article or mark["form"] or "")]
        shown: list[Piece] = [Show(name, variable, mark["form"] or "")]
        return [Show(name, variable, f"{article}_"), *_say(" "), *shown] if article else shown

    def _repeat(self, name: str) -> Repeat:
        if name not in self._remembered:
            raise ConfigError(f"{{{name}}} is neither a variable nor a remembered text")
        return Repeat(name)

    def _rule(self, name: str) -> Rule:
        if name not in self._rules:
            raise ConfigError(f"the grammar has no rule <{name}>; it has {', '.join(self._rules)}")
        return self._rules[name]


def _say(text: str) -> list[Piece]:
    return [Say(fragment(text, GRAMMAR))] if text else []
