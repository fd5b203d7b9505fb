r"""A grammar of weighted choices whose texts have one derivation, hence a known probability.

Rules are written as templates, alternatives divided by `|`, a weight in front as in `3 * happy`:

    {new hero}           bind the variable to a word and say it; {hero} says it again
    {hero.he}            say another form of the word
    {a new animal}       say it with its article; so does {a animal}
    [wish: I want it]    say a text and remember it; {wish} repeats it
    <ending>             continue with a rule

Why no text is ambiguous: read from left to right, a fixed text, a word shown again and a text
repeated leave nothing to choose; and wherever there is a choice, no option's text begins with
another's (checked when the grammar is built), so that the text itself says which was taken. Hence
log p(text) is the sum of the log-probabilities of the choices.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from math import log

from mlx_attn.errors import ConfigError
from mlx_attn.text.tales.pieces import (
    Fragment,
    Note,
    Pick,
    Piece,
    Reading,
    Repeat,
    Rule,
    Say,
    Show,
    Telling,
    fragment,
    read_all,
)
from mlx_attn.text.tales.words import GRAMMAR, Variable

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
