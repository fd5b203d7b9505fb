"""The words of the stories with their forms, and their grammar; both are read from english.toml."""

import functools

from mlx_attn.records import package_table
from mlx_attn.text.stories.grammar import AGREEMENT, COUNTING, Grammar, Variable, Word, unlike

_ABILITIES = {
    **dict.fromkeys(("he", "him", "his", "was", "a_"), AGREEMENT),
    **dict.fromkeys(("ordinal", "counted"), COUNTING),
}
"""What it takes to predict a form of a word that was mentioned before."""


@functools.cache  # a word of two lists is one word
def _word(kind: str, text: str) -> Word:
    """A word and its forms: pronouns, articles, the verb, or the place with its preposition."""
    match kind:
        case "she":
            forms = {"he": "she", "him": "her", "his": "her"}
        case "he":
            forms = {"he": "he", "him": "him", "his": "his"}
        case "singular":
            article = "an" if text[0] in "aeiou" else "a"
            forms = {"a": f"{article} {text}", "a_": article, "was": "was"}
        case "plural":
            forms = {"was": "were"}
        case "plain":
            forms = {}
        case preposition:
            forms = {"at": f"{preposition} the {text}"}
    return Word(text, forms)


def _numbers(texts: str, ordinals: str) -> tuple[Word, ...]:
    """The numbers from one; the form `counted` counts up to them."""
    words = texts.split()
    return tuple(
        Word(
            word,
            {
                "was": "was" if value == 1 else "were",
                "ordinal": ordinal,
                "counted": ", ".join(words[:value]).capitalize(),
            },
            value,
        )
        for value, (word, ordinal) in enumerate(zip(words, ordinals.split(), strict=True), 1)
    )


_TABLES = package_table("mlx_attn.text.stories", "english")

WORDS = {
    name: tuple(_word(kind, text) for kind, texts in kinds.items() for text in texts.split())
    for name, kinds in _TABLES["words"].items()
}
WORDS["numbers"] = _numbers(
    "one two three four five six seven", "first second third fourth fifth sixth seventh"
)


def _variable(row: str) -> Variable:
    words, _, others = row.partition(" unlike ")
    return unlike(WORDS[words], *others.split())


def _between(least: int, most: int) -> Variable:
    return Variable(WORDS["numbers"], (), lambda word: least <= word.value <= most)


def _leaving(total: str, least: int) -> Variable:
    """A number to take away from a total so that at least `least` are left."""

    def leaves_enough(word: Word, whole: Word) -> bool:
        return word.value <= whole.value - least

    return Variable(WORDS["numbers"], (total,), leaves_enough, COUNTING)


def _difference(total: str, taken: str) -> Variable:
    def left(word: Word, whole: Word, part: Word) -> bool:
        return word.value == whole.value - part.value

    return Variable(WORDS["numbers"], (total, taken), left, COUNTING)


VARIABLES = {name: _variable(row) for name, row in _TABLES["variables"].items()} | {
    "total": _between(4, 7),
    "given": _leaving("total", 2),
    "left": _difference("total", "given"),
    "given2": _leaving("left", 1),
    "left2": _difference("left", "given2"),
    "count": _between(3, 6),
}
_RULES = {**_TABLES["rules"], "plot": " | ".join(_TABLES["plots"].values())}

GRAMMAR = Grammar(_RULES, VARIABLES, start="story", terminator="\n", abilities=_ABILITIES)
