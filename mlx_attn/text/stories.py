"""Generated stories: one at a time with every span explained, or many as a training text.

A story is one paragraph of plain ASCII, so that characters are bytes, followed by one newline. The
same seed gives the same text on every platform and version of Python: of a random generator, only
`random.Random(seed).random()` is used.

Their grammar has one derivation for each, so that its probability is known. The words and the rules
are read from english.toml. A rule is a template: options separated by `|`, each with an optional
integer weight, of

    {new hero}      a word for the variable `hero`, chosen among those that it may take
    {hero.his}      a form of the word that `hero` is bound to
    {a new hue}     as `{new hue}`, with its article (form `a`)
    {a hue}         the same word again, with its article (form `a_`)
    <walked>        another rule
    [wish: ...]     text that is remembered as `wish`
    {wish}          that text again, word for word

Which words a variable may take can depend on the variables bound before it (a friend is not the
hero; a remainder is a difference); the choice is renormalised exactly.
"""

import functools
import random
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import log
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float64, Int64, UInt8

from mlx_attn.records import package_table

ABILITIES = ("free", "grammar", "agreement", "recall", "copy", "counting")
"""What it takes to predict a span of text; `StoryCorpus.abilities` indexes this tuple."""

FREE, GRAMMAR, AGREEMENT, RECALL, COPY, COUNTING = range(len(ABILITIES))


@dataclass(frozen=True, eq=False)
class Word:
    """A word: its plain text, its other forms by name, and the value of a number."""

    text: str
    forms: Mapping[str, str] = field(default_factory=dict)
    value: int = 0

    def form(self, name: str) -> str:
        """Return the text of one form; the empty name is the plain text."""
        return self.forms[name] if name else self.text


@dataclass(frozen=True, eq=False)
class Variable:
    """Something a text remembers, and the words that it may be bound to, each equally likely.

    A word is a candidate if `allowed(word, *given)` holds, `given` being the words bound to the
    variables so named (unbound ones are left out). If a single candidate remains, nothing is
    free: its text calls for the ability `determined`.
    """

    words: tuple[Word, ...]
    given: tuple[str, ...] = ()
    allowed: Callable[..., bool] = lambda word, *given: word not in given
    determined: int = FREE


class Fragment(NamedTuple):
    """A stretch of text that calls for one ability."""

    text: str  # the text; ASCII
    ability: int
    log_probability: float = 0.0  # in nats; 0 if nothing is chosen

    def __call__(self, state: "_State") -> None:
        """Write it."""
        state.fragments.append(self)


class _State(NamedTuple):
    """A text while it is sampled; `draw` gives uniform numbers in [0, 1)."""

    fragments: list[Fragment]
    bound: dict[str, Word]
    draw: Callable[[], float]


Piece = Callable[[_State], None]
"""A part of a template: it appends its fragments, making its choices at random."""


def _distinct(text: str, others: list[str]) -> int:
    """Return the end of the fewest whole words of a text that none of the others starts with."""
    ends = [index for index, letter in enumerate(text) if letter == " "] + [len(text)]
    return next(end for end in ends if not any(other.startswith(text[:end]) for other in others))


def _literal(text: str) -> list[Piece]:
    return [Fragment(text, GRAMMAR)] if text else []


# English: the words of the stories with their forms, and their grammar.

_ABILITIES = {
    **dict.fromkeys(("he", "him", "his", "was", "a_"), AGREEMENT),
    **dict.fromkeys(("ordinal", "counted"), COUNTING),
}
"""What it takes to predict a form of a word that was mentioned before."""

_TABLES = package_table("mlx_attn.text", "english")


@functools.cache  # a word of two lists is one word
def _word(kind: str, text: str) -> Word:
    """Return a word and its forms: pronouns, articles, verb, or the place with its preposition."""
    article = "an" if text[0] in "aeiou" else "a"
    if kind == "singular":
        return Word(text, {"a": f"{article} {text}", "a_": article, "was": "was"})
    return Word(text, _TABLES["forms"].get(kind, {"at": f"{kind} the {text}"}))


WORDS = {
    name: tuple(_word(kind, text) for kind, texts in kinds.items() for text in texts.split())
    for name, kinds in _TABLES["words"].items()
}
_COUNT = [*_TABLES["numbers"]]
WORDS["numbers"] = _NUMBERS = tuple(
    Word(
        word,
        {
            "was": "was" if value == 1 else "were",
            "ordinal": ordinal,
            "counted": ", ".join(_COUNT[:value]).capitalize(),  # counts up to it
        },
        value,
    )
    for value, (word, ordinal) in enumerate(_TABLES["numbers"].items(), 1)
)
_DIFFERENCE = {
    "allowed": lambda word, whole, part: word.value == whole.value - part.value,
    "determined": COUNTING,
}
VARIABLES = {
    name: Variable(WORDS[words], tuple(others.split()))
    for name, row in _TABLES["variables"].items()
    for words, _, others in (row.partition(" unlike "),)
} | {
    "total": Variable(_NUMBERS, (), lambda word: 4 <= word.value <= 7),
    # What is given away leaves at least two, and then at least one.
    "given": Variable(_NUMBERS, ("total",), lambda word, n: word.value <= n.value - 2, COUNTING),
    "left": Variable(_NUMBERS, ("total", "given"), **_DIFFERENCE),
    "given2": Variable(_NUMBERS, ("left",), lambda word, n: word.value <= n.value - 1, COUNTING),
    "left2": Variable(_NUMBERS, ("left", "given2"), **_DIFFERENCE),
    "count": Variable(_NUMBERS, (), lambda word: 3 <= word.value <= 6),
}
_TEMPLATES = {**_TABLES["rules"], "plot": " | ".join(_TABLES["plots"].values())}
_MARK = re.compile(
    r"\{(?P<article>a )?(?P<new>new )?(?P<name>\w+)(\.(?P<form>\w+))?\}"
    r"|<(?P<rule>\w+)>|\[(?P<capture>\w+): (?P<inside>[^]]*)\]"
)


def _rule(name: str) -> Piece:
    """Return a piece that writes one of a rule's options, chosen by their weights."""

    def write(state: _State) -> None:
        options = _options(name)
        for piece in options[int(state.draw() * len(options))]:
            piece(state)

    return write


@functools.cache  # rules refer to one another
def _options(rule: str) -> list[tuple[Piece, ...]]:
    """Return the options of a rule, each as often as its weight says.

    Their first words tell them apart; they are `free` and carry the log-probability of the choice.
    """
    rows = [" ".join(text.split()).rpartition(" * ") for text in _TEMPLATES[rule].split("|")]
    weights = [int(weight or 1) for weight, _, _ in rows]
    pieces = [_compiled(option) for _, _, option in rows]
    if len(rows) == 1:
        return pieces
    texts = [first.text if isinstance(first, Fragment) else "" for first, *_ in pieces]
    options: list[tuple[Piece, ...]] = []
    for text, weight, (_, *rest) in zip(texts, weights, pieces, strict=True):
        end = _distinct(text, [other for other in texts if other != text])
        free = Fragment(text[:end], FREE, log(weight / sum(weights)))
        options += [(free, *_literal(text[end:]), *rest)] * weight
    return options


def _compiled(template: str) -> tuple[Piece, ...]:
    pieces, end = list[Piece](), 0
    for mark in _MARK.finditer(template):
        pieces += [*_literal(template[end : mark.start()]), *_marked(mark)]
        end = mark.end()
    return (*pieces, *_literal(template[end:]))


def _marked(mark: re.Match[str]) -> list[Piece]:
    if mark["rule"]:
        return [_rule(mark["rule"])]
    if mark["capture"]:
        return [_capture(mark["capture"], _compiled(mark["inside"]))]
    name, form = mark["name"], mark["form"] or ""
    if name not in VARIABLES:
        # A remembered text, word for word.
        return [lambda state: state.fragments.append(Fragment(state.bound[name].text, COPY))]
    if mark["new"]:
        return [_choice(name, "a" if mark["article"] else form)]
    article = [_reference(name, "a_"), *_literal(" ")] if mark["article"] else []
    return [*article, _reference(name, form)]


def _choice(name: str, form: str) -> Piece:
    """Return a piece that binds a variable to one of the words allowed, and writes a form of it."""
    variable = VARIABLES[name]

    @functools.cache
    def table(*given: Word) -> list[tuple[Word, Fragment]]:
        words = [word for word in variable.words if variable.allowed(word, *given)]
        ability, nats = variable.determined if len(words) == 1 else FREE, log(1 / len(words))
        return [(word, Fragment(word.form(form), ability, nats)) for word in words]

    def sample(state: _State) -> None:
        rows = table(*[state.bound[other] for other in variable.given if other in state.bound])
        state.bound[name], fragment = rows[int(state.draw() * len(rows))]
        state.fragments.append(fragment)

    return sample


def _reference(name: str, form: str) -> Piece:
    """Return a piece that writes a form of the word that a variable is bound to."""
    ability, words = _ABILITIES.get(form, RECALL), VARIABLES[name].words
    fragments = {word: Fragment(word.form(form), ability) for word in words}
    return lambda state: state.fragments.append(fragments[state.bound[name]])


def _capture(name: str, pieces: Iterable[Piece]) -> Piece:
    """Return a piece that writes others, and remembers their whole text."""

    def sample(state: _State) -> None:
        start = len(state.fragments)
        for piece in pieces:
            piece(state)
        state.bound[name] = Word("".join([f.text for f in state.fragments[start:]]))

    return sample


def sample(draw: Callable[[], float]) -> list[Fragment]:
    """Return one story drawn at random, as fragments; `draw` gives uniform numbers in [0, 1)."""
    state = _State([], {}, draw)
    for piece in (_rule("story"), Fragment("\n", GRAMMAR)):
        piece(state)
    return state.fragments


# Stories, one or many.


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes `start` to `end` of a story, which call for one ability.

    `log_probability` (nats) belongs to the free choice made here; it is 0 if the text before
    decides.
    """

    start: int
    end: int
    ability: str
    log_probability: float


@dataclass(frozen=True, slots=True)
class Story:
    """One story, the spans that tile it, and the log-probability of its whole text in nats."""

    text: str
    spans: tuple[Span, ...]
    log_probability: float


@dataclass(frozen=True)
class StoryCorpus:
    """Stories in a row."""

    text: str  # the stories; plain ASCII
    # The ability that predicting each byte takes, as an index into `ABILITIES`.
    abilities: UInt8[np.ndarray, " bytes"]
    story_starts: Int64[np.ndarray, " stories"]  # the byte at which each story begins
    # Nats by ability, negative where there are free choices.
    ability_log_probability: Float64[np.ndarray, " abilities"]


def generate_story(random: random.Random) -> Story:
    """Return one story, from a generator of which only the method `random()` is used."""
    fragments = sample(random.random)
    text = "".join([fragment.text for fragment in fragments])
    nats = sum(fragment.log_probability for fragment in fragments)
    spans: list[Span] = []
    start = 0
    for piece, ability, log_probability in fragments:
        spans.append(Span(start, start + len(piece), ABILITIES[ability], log_probability))
        start += len(piece)
    return Story(text, tuple(spans), nats)


def generate_stories(n_bytes: int, split: Literal["train", "val"]) -> StoryCorpus:
    """Return whole stories of at least `n_bytes` bytes; each split has its own random numbers."""
    draw = random.Random(int(split == "val")).random
    texts: list[str] = []
    abilities: list[int] = []  # of each text
    starts: list[int] = []
    nats = [0.0] * len(ABILITIES)
    length = 0
    while length < n_bytes:
        starts.append(length)
        for text, ability, log_probability in sample(draw):
            texts.append(text)
            abilities.append(ability)
            nats[ability] += log_probability
            length += len(text)
    by_byte = np.repeat(np.array(abilities, np.uint8), [*map(len, texts)])
    return StoryCorpus("".join(texts), by_byte, np.array(starts, np.int64), np.array(nats))
