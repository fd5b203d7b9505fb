"""The grammar engine, by brute force on grammars small enough to write all their texts down."""

import math
import random
from collections import Counter
from fractions import Fraction

import pytest

from mlx_attn.text.stories.grammar import (
    AGREEMENT,
    COPY,
    COUNTING,
    FREE,
    GRAMMAR,
    RECALL,
    Grammar,
    Variable,
    Word,
    unlike,
)
from tests.text.stories.derivations import derivations, enumerate_texts

PEOPLE = (Word("Ann", {"he": "she"}), Word("Bob", {"he": "he"}), Word("Cy", {"he": "he"}))
FRUIT = (Word("fig", {"a": "a fig", "a_": "a"}), Word("egg", {"a": "an egg", "a_": "an"}))
NUMBERS = tuple(Word(text, value=i) for i, text in enumerate(["one", "two", "three"], 1))
ABILITIES = {"he": AGREEMENT, "a_": AGREEMENT}
VARIABLES = {
    "hero": Variable(PEOPLE),
    "friend": unlike(PEOPLE, "hero"),
    "fruit": Variable(FRUIT),
    "total": Variable(NUMBERS, (), lambda word: word.value > 1),
    "given": Variable(NUMBERS, ("total",), lambda word, total: word.value < total.value, COUNTING),
}
RULES = {
    "tale": "{new hero} <met> {new friend}. [cry: I want {a new fruit}], {hero.he} said. <end>",
    "met": "2 * met | went to meet | went off with | saw",
    "end": "Nobody had {a fruit}. | So {friend} said: {cry}. | Of {new total}, {new given} came.",
}
SMALL = Grammar(RULES, VARIABLES, start="tale", terminator="\n")


@pytest.fixture(scope="module")
def every_text() -> list[tuple[str, Fraction]]:
    return list(enumerate_texts(SMALL))


def test_probabilities_of_all_texts_sum_to_one(every_text):
    assert sum(probability for _, probability in every_text) == 1


def test_every_text_has_exactly_one_derivation(every_text):
    assert max(Counter(text for text, _ in every_text).values()) == 1
    assert all(derivations(SMALL, text) == [probability] for text, probability in every_text)


def test_a_sampled_text_has_its_enumerated_log_probability(every_text):
    exact = dict(every_text)
    draw = random.Random(0).random
    for _ in range(500):
        fragments = SMALL.sample(draw)
        sampled = sum(fragment.log_probability for fragment in fragments)
        text = "".join(fragment.text for fragment in fragments)
        assert sampled == pytest.approx(math.log(exact[text]), abs=1e-12)


def test_spans_call_for_the_abilities_that_predict_them():
    fragments = Grammar(
        {
            "tale": "{new hero} wants [cry: {a new fruit}]. <end>",
            "end": "Does {hero.he}? {hero} says: {cry}, {a fruit}. Then {new total}, {new given}!",
        },
        {**VARIABLES, "total": Variable(NUMBERS, (), lambda word: word.value == 2, FREE)},
        start="tale",
        abilities=ABILITIES,
    ).sample(lambda: 0.0)
    assert [(fragment.text, fragment.ability) for fragment in fragments] == [
        ("Ann", FREE),
        (" wants ", GRAMMAR),
        ("a fig", FREE),
        (". ", GRAMMAR),
        ("Does ", GRAMMAR),
        ("she", AGREEMENT),
        ("? ", GRAMMAR),
        ("Ann", RECALL),
        (" says: ", GRAMMAR),
        ("a fig", COPY),
        (", ", GRAMMAR),
        ("a", AGREEMENT),
        (" ", GRAMMAR),
        ("fig", RECALL),
        (". Then ", GRAMMAR),
        ("two", FREE),
        (", ", GRAMMAR),
        ("one", COUNTING),
        ("!", GRAMMAR),
    ]
