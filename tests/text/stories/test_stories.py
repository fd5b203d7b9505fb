"""The stories are English, consistent, as probable as they claim, and never change."""

import hashlib
import random
import re
import subprocess
import sys

import numpy as np
import pytest

from mlx_attn.errors import ConfigError
from mlx_attn.text.stories.dataset import Story, generate_stories, generate_story
from mlx_attn.text.stories.grammar import ABILITIES, ENGLISH, WORDS
from tests.text.stories.derivations import derivations, log_probability

NAMES = {word.text for word in WORDS["people"]}


def generated(count: int, seed: int) -> list[Story]:
    source = random.Random(seed)
    return [generate_story(source) for _ in range(count)]


STORIES = generated(800, seed=11)


def test_spans_tile_the_text():
    for story in STORIES:
        bounds = [0, *(span.end for span in story.spans)]
        assert [span.start for span in story.spans] == bounds[:-1]
        assert bounds[-1] == len(story.text)
        assert all(span.start < span.end for span in story.spans)


def test_log_probability_is_the_sum_over_the_free_spans():
    for story in STORIES:
        free = sum(span.log_probability for span in story.spans if span.ability == "free")
        assert story.log_probability == pytest.approx(free, abs=1e-9)
        assert all(s.log_probability == 0 for s in story.spans if s.ability != "free")


def test_every_free_span_has_an_alternative():
    assert all(
        s.log_probability < 0 for story in STORIES for s in story.spans if s.ability == "free"
    )


def test_reading_finds_one_derivation_with_the_stated_log_probability():
    for story in STORIES[:50]:
        assert len(derivations(ENGLISH, story.text)) == 1
        assert log_probability(ENGLISH, story.text) == pytest.approx(
            story.log_probability, abs=1e-9
        )


def test_a_story_with_a_wrong_word_has_probability_zero():
    for story in STORIES[:40]:
        recalled = next(s for s in reversed(story.spans) if s.ability == "recall")
        wrong = story.text[: recalled.start] + "Zebra" + story.text[recalled.end :]
        assert log_probability(ENGLISH, wrong) == -float("inf")


def test_every_ability_occurs_in_a_known_place():
    assert {span.ability for story in STORIES for span in story.spans} == set(ABILITIES)
    assert all(
        {"free", "grammar", "recall", "copy"} <= {s.ability for s in t.spans} for t in STORIES
    )


def test_distances_lead_back_to_the_same_words():
    for story in STORIES:
        for span in story.spans:
            if span.ability == "copy":
                assert span.distance is not None
                text = story.text[span.start : span.end]
                assert story.text.startswith(text, span.start - span.distance)


def test_recalls_are_near_and_far():
    distances = [s.distance for story in STORIES for s in story.spans if s.ability == "recall"]
    known = [distance for distance in distances if distance is not None]
    assert len(known) == len(distances)
    assert min(known) < 30
    assert sum(distance > 300 for distance in known) > len(known) / 10


def test_one_paragraph_of_ascii_within_bounds():
    for story in STORIES:
        assert story.text.isascii()
        assert story.text.index("\n") == len(story.text) - 1
        assert 200 < len(story.text) <= 800
    assert 350 < sum(len(story.text) for story in STORIES) / len(STORIES) < 500


def test_spacing_and_capitals():
    for story in STORIES:
        assert "  " not in story.text
        assert not re.search(r" [.,!?]|^ | \n", story.text)
        assert not re.search(r"[.!?]\"? [a-z](?<!\" [a-z])", story.text)
        assert story.text[0].isupper()
        assert story.text[-2] in '.!?"'


def test_quotation_marks_are_balanced():
    for story in STORIES:
        assert story.text.count('"') % 2 == 0
        assert story.text.count("'") % 2 == 0
        assert all(part.count("'") % 2 == 0 for part in story.text.split('"'))


def test_articles_fit_the_next_word():
    for story in STORIES:
        for article, letter in re.findall(r"\b([Aa]n?) (\w)", story.text):
            assert (article.lower() == "an") == (letter in "aeiou"), story.text


def test_named_characters_are_introduced_before_they_are_recalled():
    for story in STORIES:
        introduced: set[str] = set()
        for span in story.spans:
            word = story.text[span.start : span.end]
            if word in NAMES and span.ability == "free":
                assert word not in introduced
                introduced.add(word)
            elif word in NAMES:
                assert word in introduced
        assert len(introduced) in (1, 2)


def test_somebody_other_than_the_hero_speaks():
    for story in STORIES:
        hero = next(w for w in re.findall(r"\w+", story.text) if w in NAMES)
        verbs = r"(?:said|cried|whispered|called|murmured|sang|sighed|asked|wondered|inquired)"
        speakers = re.findall(rf"\b{verbs} (the \w+|[A-Z]\w+)|(Grandmother) had", story.text)
        assert {"".join(speaker) for speaker in speakers} - {hero}, story.text


def test_the_ending_recalls_the_beginning():
    for story in STORIES:
        sentences = re.split(r"(?<=[.!?]) ", story.text)
        first = {story.text[s.start : s.end] for s in story.spans if s.end <= len(sentences[0])}
        ending = len(story.text) - len(sentences[-1])
        last = [s for s in story.spans if s.start >= ending and s.ability == "recall"]
        assert sum(story.text[s.start : s.end] in first for s in last) >= 2


def test_what_is_left_is_a_difference():
    value = {word.text: word.value for word in WORDS["numbers"]}
    seen = 0
    for story in STORIES:
        total = re.search(r"There were (\w+)", story.text)
        if total:
            gifts = re.findall(r"gave (?:the )?\w+ (\w+), so (\w+) (was|were) left", story.text)
            assert len(gifts) == 2
            remaining = value[total[1]]
            for given, left, verb in gifts:
                remaining -= value[given]
                assert remaining == value[left] >= 1
                assert verb == ("was" if remaining == 1 else "were")
            seen += 1
    assert seen > 50


DIGEST = "999665c137dbbd7525bfcf445ca7ecf55e2006d475bde81c8543ccc1929fd9c5"
ABILITIES_DIGEST = "5f19f089e9ced39cfc47bca0efd243ed72c4661a85fd6e534a2c10fce0a0e64a"


@pytest.fixture(scope="module")
def corpus():
    return generate_stories(200_000, seed=0)


def test_the_corpus_is_the_same_on_every_platform_and_in_every_version(corpus):
    """Whoever changes it changes `sources._STORY_GENERATOR` too: runs name their text by that."""
    assert hashlib.sha256(corpus.text.encode("ascii")).hexdigest() == DIGEST
    assert hashlib.sha256(corpus.abilities.tobytes()).hexdigest() == ABILITIES_DIGEST


def test_stories_are_whole_and_start_where_it_says(corpus):
    assert len(corpus.text) >= 200_000
    assert corpus.text.endswith("\n")
    after_newlines = [i + 1 for i, letter in enumerate(corpus.text[:-1]) if letter == "\n"]
    assert corpus.story_starts.tolist() == [0, *after_newlines]
    assert corpus.story_starts[-1] < 200_000


def test_a_longer_text_begins_with_the_shorter(corpus):
    assert corpus.text.startswith(generate_stories(10_000, seed=0).text)


def test_abilities_and_log_probability_are_those_of_the_stories(corpus):
    source = random.Random(0)
    stories = [generate_story(source) for _ in corpus.story_starts]
    assert corpus.text == "".join(story.text for story in stories)
    marks = [
        (ABILITIES.index(s.ability), s.end - s.start) for story in stories for s in story.spans
    ]
    assert np.array_equal(corpus.abilities, np.repeat(*np.array(marks).T))
    assert corpus.log_probability == pytest.approx(sum(story.log_probability for story in stories))


def test_every_nat_is_in_a_free_choice(corpus):
    free, *others = corpus.ability_log_probability
    assert free < 0
    assert others == [0.0] * (len(ABILITIES) - 1)


def test_every_ability_marks_some_of_the_text(corpus):
    shares = np.bincount(corpus.abilities, minlength=len(ABILITIES)) / len(corpus.text)
    assert shares.min() > 0.01
    assert shares[0] > 0.3


def test_the_floor_agrees_between_texts(corpus):
    other = generate_stories(200_000, seed=5)
    assert other.bits_per_byte == pytest.approx(corpus.bits_per_byte, rel=0.02)
    assert 0.15 < corpus.bits_per_byte < 0.75


def test_the_floor_is_what_parsing_gives(corpus):
    part = generate_stories(20_000, seed=3)
    nats = sum(log_probability(ENGLISH, story + "\n") for story in part.text.splitlines())
    assert nats == pytest.approx(part.log_probability)


def test_training_and_validation_share_no_stories():
    training = set(generate_stories(300_000, seed=0, split="train").text.splitlines())
    validation = generate_stories(100_000, seed=0, split="val").text.splitlines()
    assert not training.intersection(validation)
    assert len(set(validation)) == len(validation)


def test_no_split_of_one_seed_is_a_split_of_another():
    texts = {
        generate_stories(500, seed=s, split=p).text for s in range(20) for p in ("train", "val")
    }
    assert len(texts) == 40


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"n_bytes": 0}, "n_bytes is 0; choose 1 to"),
        ({"n_bytes": 10, "seed": -1}, "seed of the tales is -1; choose 0 or more"),
    ],
)
def test_impossible_requests_are_refused(arguments, complaint):
    with pytest.raises(ConfigError, match=complaint):
        generate_stories(**arguments)


def test_a_megabyte_takes_about_a_second():
    # In a fresh process: the type checks of the tests are no part of the speed. Asked for: 1 MB/s.
    measure = (
        "import time; from mlx_attn.text.stories.dataset import generate_stories;"
        "start = time.process_time(); generate_stories(1_000_000);"
        "print(time.process_time() - start)"
    )
    seconds = subprocess.run(
        [sys.executable, "-c", measure], capture_output=True, text=True, check=True
    ).stdout
    assert float(seconds) < 2
