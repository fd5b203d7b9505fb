"""The stories are as probable as they claim, and never change."""

import hashlib
import random

import pytest

from mlx_attn.text.stories import generate_stories, generate_story


def test_log_probability_is_the_sum_over_the_free_spans():
    source = random.Random(11)
    for story in (generate_story(source) for _ in range(100)):
        free = sum(span.log_probability for span in story.spans if span.ability == "free")
        assert story.log_probability == pytest.approx(free, abs=1e-9)
        assert all(s.log_probability == 0 for s in story.spans if s.ability != "free")


DIGEST = "999665c137dbbd7525bfcf445ca7ecf55e2006d475bde81c8543ccc1929fd9c5"
ABILITIES_DIGEST = "5f19f089e9ced39cfc47bca0efd243ed72c4661a85fd6e534a2c10fce0a0e64a"
LOG_PROBABILITY = -26147.059955307377
"""In nats. Reading each of these stories back by exhaustive search, in fractions, gave as much."""


def test_the_corpus_is_the_same_on_every_platform_and_in_every_version():
    """Whoever changes it changes `sources._STORY_GENERATOR` too: runs name their text by that."""
    corpus = generate_stories(200_000, "train")
    assert hashlib.sha256(corpus.text.encode("ascii")).hexdigest() == DIGEST
    assert hashlib.sha256(corpus.abilities.tobytes()).hexdigest() == ABILITIES_DIGEST
    assert corpus.ability_log_probability.sum() == pytest.approx(LOG_PROBABILITY, rel=1e-12)


def test_training_and_validation_share_no_stories():
    training = set(generate_stories(300_000, "train").text.splitlines())
    validation = generate_stories(100_000, "val").text.splitlines()
    assert not training.intersection(validation)
    assert len(set(validation)) == len(validation)
