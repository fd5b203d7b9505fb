"""The stories: that they are English, consistent, and as probable as they claim."""

import random
import re

import pytest

from mlx_attn.text.stories.dataset import Tale, parse, tell
from mlx_attn.text.stories.english import GRAMMAR, NUMBERS, PEOPLE
from mlx_attn.text.stories.grammar import ABILITIES

NAMES = {word.text for word in PEOPLE.words}


def told(count: int, seed: int) -> list[Tale]:
    source = random.Random(seed)
    return [tell(source) for _ in range(count)]


TALES = told(800, seed=11)


def test_spans_tile_the_text():
    for tale in TALES:
        bounds = [0, *(span.end for span in tale.spans)]
        assert [span.start for span in tale.spans] == bounds[:-1]
        assert bounds[-1] == len(tale.text)
        assert all(span.start < span.end for span in tale.spans)


def test_log_probability_is_the_sum_over_the_free_spans():
    for tale in TALES:
        free = sum(span.log_probability for span in tale.spans if span.ability == "free")
        assert tale.log_probability == pytest.approx(free, abs=1e-9)
        assert all(s.log_probability == 0 for s in tale.spans if s.ability != "free")


def test_every_free_span_has_an_alternative():
    assert all(s.log_probability < 0 for tale in TALES for s in tale.spans if s.ability == "free")


def test_reading_finds_one_derivation_with_the_told_log_probability():
    for tale in TALES[:200]:
        assert len(GRAMMAR.derivations(tale.text)) == 1
        assert parse(tale.text) == pytest.approx(tale.log_probability, abs=1e-9)


def test_a_tale_with_a_wrong_word_has_probability_zero():
    for tale in TALES[:40]:
        recalled = next(s for s in reversed(tale.spans) if s.ability == "recall")
        wrong = tale.text[: recalled.start] + "Zebra" + tale.text[recalled.end :]
        assert parse(wrong) == -float("inf")


def test_every_ability_occurs_in_a_known_place():
    assert {span.ability for tale in TALES for span in tale.spans} == set(ABILITIES)
    assert all({"free", "grammar", "recall", "copy"} <= {s.ability for s in t.spans} for t in TALES)


def test_distances_lead_back_to_the_same_words():
    for tale in TALES:
        for span in tale.spans:
            if span.ability == "copy":
                assert span.distance is not None
                text = tale.text[span.start : span.end]
                assert tale.text.startswith(text, span.start - span.distance)


def test_recalls_are_near_and_far():
    distances = [s.distance for tale in TALES for s in tale.spans if s.ability == "recall"]
    known = [distance for distance in distances if distance is not None]
    assert len(known) == len(distances)
    assert min(known) < 30
    assert sum(distance > 300 for distance in known) > len(known) / 10


def test_one_paragraph_of_ascii_within_bounds():
    for tale in TALES:
        assert tale.text.isascii()
        assert tale.text.index("\n") == len(tale.text) - 1
        assert 200 < len(tale.text) <= 800
    assert 350 < sum(len(tale.text) for tale in TALES) / len(TALES) < 500


def test_spacing_and_capitals():
    for tale in TALES:
        assert "  " not in tale.text
        assert not re.search(r" [.,!?]|^ | \n", tale.text)
        assert not re.search(r"[.!?]\"? [a-z](?<!\" [a-z])", tale.text)
        assert tale.text[0].isupper()
        assert tale.text[-2] in '.!?"'


def test_quotation_marks_are_balanced():
    for tale in TALES:
        assert tale.text.count('"') % 2 == 0
        assert tale.text.count("'") % 2 == 0
        assert all(part.count("'") % 2 == 0 for part in tale.text.split('"'))


def test_articles_fit_the_next_word():
    for tale in TALES:
        for article, letter in re.findall(r"\b([Aa]n?) (\w)", tale.text):
            assert (article.lower() == "an") == (letter in "aeiou"), tale.text


def test_named_characters_are_introduced_before_they_are_recalled():
    for tale in TALES:
        introduced: set[str] = set()
        for span in tale.spans:
            word = tale.text[span.start : span.end]
            if word in NAMES and span.ability == "free":
                assert word not in introduced
                introduced.add(word)
            elif word in NAMES:
                assert word in introduced
        assert len(introduced) in (1, 2)


def test_somebody_other_than_the_hero_speaks():
    for tale in TALES:
        hero = next(w for w in re.findall(r"\w+", tale.text) if w in NAMES)
        verbs = r"(?:said|cried|whispered|called|murmured|sang|sighed|asked|wondered|inquired)"
        speakers = re.findall(rf"\b{verbs} (the \w+|[A-Z]\w+)|(Grandmother) had", tale.text)
        assert {"".join(speaker) for speaker in speakers} - {hero}, tale.text


def test_the_ending_recalls_the_beginning():
    for tale in TALES:
        sentences = re.split(r"(?<=[.!?]) ", tale.text)
        first = {tale.text[s.start : s.end] for s in tale.spans if s.end <= len(sentences[0])}
        ending = len(tale.text) - len(sentences[-1])
        last = [s for s in tale.spans if s.start >= ending and s.ability == "recall"]
        assert sum(tale.text[s.start : s.end] in first for s in last) >= 2


def test_what_is_left_is_a_difference():
    value = {word.text: word.value for word in NUMBERS.words}
    seen = 0
    for tale in TALES:
        total = re.search(r"There were (\w+)", tale.text)
        if total:
            gifts = re.findall(r"gave (?:the )?\w+ (\w+), so (\w+) (was|were) left", tale.text)
            assert len(gifts) == 2
            remaining = value[total[1]]
            for given, left, verb in gifts:
                remaining -= value[given]
                assert remaining == value[left] >= 1
                assert verb == ("was" if remaining == 1 else "were")
            seen += 1
    assert seen > 50
