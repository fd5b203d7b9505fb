"""The stories are English, consistent, as probable as they claim, and never change."""

import hashlib
import random
import re

import numpy as np
import pytest

from mlx_attn.text.stories.dataset import Story, generate_stories, generate_story
from mlx_attn.text.stories.grammar import ABILITIES, WORDS


def generated(count: int, seed: int) -> list[Story]:
    source = random.Random(seed)
    return [generate_story(source) for _ in range(count)]


STORIES = generated(800, seed=11)


def test_log_probability_is_the_sum_over_the_free_spans():
    for story in STORIES:
        free = sum(span.log_probability for span in story.spans if span.ability == "free")
        assert story.log_probability == pytest.approx(free, abs=1e-9)
        assert all(s.log_probability == 0 for s in story.spans if s.ability != "free")


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
LOG_PROBABILITY = -26147.059955307377
"""In nats. Reading each of these stories back by exhaustive search, in fractions, gave as much."""


@pytest.fixture(scope="module")
def corpus():
    return generate_stories(200_000, seed=0)


def test_the_corpus_is_the_same_on_every_platform_and_in_every_version(corpus):
    """Whoever changes it changes `sources._STORY_GENERATOR` too: runs name their text by that."""
    assert hashlib.sha256(corpus.text.encode("ascii")).hexdigest() == DIGEST
    assert hashlib.sha256(corpus.abilities.tobytes()).hexdigest() == ABILITIES_DIGEST
    assert corpus.log_probability == pytest.approx(LOG_PROBABILITY, rel=1e-12)


def test_abilities_and_log_probability_are_those_of_the_stories(corpus):
    source = random.Random(0)
    stories = [generate_story(source) for _ in corpus.story_starts]
    assert corpus.text == "".join(story.text for story in stories)
    marks = [
        (ABILITIES.index(s.ability), s.end - s.start) for story in stories for s in story.spans
    ]
    assert np.array_equal(corpus.abilities, np.repeat(*np.array(marks).T))
    assert corpus.log_probability == pytest.approx(sum(story.log_probability for story in stories))


def test_training_and_validation_share_no_stories():
    training = set(generate_stories(300_000, seed=0, split="train").text.splitlines())
    validation = generate_stories(100_000, seed=0, split="val").text.splitlines()
    assert not training.intersection(validation)
    assert len(set(validation)) == len(validation)
