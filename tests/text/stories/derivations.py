"""Every derivation of a text, or of a whole grammar, by exhaustive search with exact fractions."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from mlx_attn.text.stories.grammar import (
    Backreference,
    Capture,
    Choice,
    Fragment,
    Grammar,
    Piece,
    Reference,
    Rule,
    Word,
)


@dataclass(frozen=True)
class Derivation:
    """One derivation as far as it was followed; its text is a prefix of `target`, if any."""

    text: str
    bound: Mapping[str, Word]
    probability: Fraction
    target: str | None = None

    def write(self, text: str) -> Iterator["Derivation"]:
        if self.target is None or self.target.startswith(text, len(self.text)):
            yield replace(self, text=self.text + text)

    def choose(self, weight: int, total: int) -> "Derivation":
        return replace(self, probability=self.probability * Fraction(weight, total))

    def bind(self, name: str, word: Word) -> "Derivation":
        return replace(self, bound={**self.bound, name: word})


def continued(pieces: tuple[Piece, ...], so_far: Derivation) -> Iterator[Derivation]:
    """Every way to continue a derivation through pieces in a row."""
    if not pieces:
        yield so_far
        return
    for after in through(pieces[0], so_far):
        yield from continued(pieces[1:], after)


def through(piece: Piece, so_far: Derivation) -> Iterator[Derivation]:  # noqa: C901
    match piece:
        case Fragment(text):
            yield from so_far.write(text)
        case Choice():
            words = piece.variable.candidates(piece.variable.key(so_far.bound))
            for word in words:
                chosen = so_far.choose(1, len(words)).bind(piece.name, word)
                yield from chosen.write(word.form(piece.form))
        case Reference():
            yield from so_far.write(so_far.bound[piece.name].form(piece.form))
        case Capture(name, pieces):
            for after in continued(pieces, so_far):
                yield after.bind(name, Word(after.text[len(so_far.text) :]))
        case Backreference(name):
            yield from so_far.write(so_far.bound[name].text)
        case Rule():
            total = sum(weight for weight, _ in piece.options)
            for weight, pieces in piece.options:
                yield from continued(pieces, so_far.choose(weight, total))


def derivations(grammar: Grammar, text: str) -> list[Fraction]:
    """The exact probability of every derivation of a text: of one, or none at all."""
    found = continued(grammar.pieces, Derivation("", {}, Fraction(1), text))
    return [derivation.probability for derivation in found if derivation.text == text]


def log_probability(grammar: Grammar, text: str) -> float:
    """In nats; minus infinity if the grammar does not generate the text."""
    probability = sum(derivations(grammar, text), Fraction(0))
    if not probability:
        return -math.inf
    return math.log(probability.numerator) - math.log(probability.denominator)
