"""Words with their forms, lexicons of words, and the variables of a story that are bound to words.

A variable is what a story remembers: its hero, the lost thing, how many plums are left. Which words
it may take can depend on the variables bound before it (a friend is not the hero; what is left is a
difference), and the choice is renormalised exactly.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

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
