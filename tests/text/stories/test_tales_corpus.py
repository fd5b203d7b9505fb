"""The stream of tales: the same bytes everywhere, splits that never meet, a floor that holds."""

import hashlib
import random
import subprocess
import sys

import numpy as np
import pytest

from mlx_attn.errors import ConfigError
from mlx_attn.text.stories.dataset import parse, tales, tell
from mlx_attn.text.stories.grammar import ABILITIES

DIGEST = "999665c137dbbd7525bfcf445ca7ecf55e2006d475bde81c8543ccc1929fd9c5"


@pytest.fixture(scope="module")
def corpus():
    return tales(200_000, seed=0)


def test_the_text_is_the_same_on_every_platform(corpus):
    assert hashlib.sha256(corpus.text.encode("ascii")).hexdigest() == DIGEST


def test_stories_are_whole_and_start_where_it_says(corpus):
    assert len(corpus.text) >= 200_000
    assert corpus.text.endswith("\n")
    after_newlines = [i + 1 for i, letter in enumerate(corpus.text[:-1]) if letter == "\n"]
    assert corpus.story_starts.tolist() == [0, *after_newlines]
    assert corpus.story_starts[-1] < 200_000


def test_a_longer_text_begins_with_the_shorter(corpus):
    assert corpus.text.startswith(tales(10_000, seed=0).text)


def test_abilities_and_log_probability_are_those_of_the_tales(corpus):
    source = random.Random(0)
    told = [tell(source) for _ in corpus.story_starts]
    assert corpus.text == "".join(tale.text for tale in told)
    marks = [(ABILITIES.index(s.ability), s.end - s.start) for tale in told for s in tale.spans]
    assert np.array_equal(corpus.abilities, np.repeat(*np.array(marks).T))
    assert corpus.log_probability == pytest.approx(sum(tale.log_probability for tale in told))


def test_every_nat_is_in_a_free_choice(corpus):
    free, *others = corpus.ability_log_probability
    assert free < 0
    assert others == [0.0] * (len(ABILITIES) - 1)


def test_every_ability_marks_some_of_the_text(corpus):
    shares = np.bincount(corpus.abilities, minlength=len(ABILITIES)) / len(corpus.text)
    assert shares.min() > 0.01
    assert shares[0] > 0.3


def test_the_floor_agrees_between_texts(corpus):
    other = tales(200_000, seed=5)
    assert other.bits_per_byte == pytest.approx(corpus.bits_per_byte, rel=0.02)
    assert 0.15 < corpus.bits_per_byte < 0.75


def test_the_floor_is_what_parsing_gives(corpus):
    part = tales(20_000, seed=3)
    nats = sum(parse(story + "\n") for story in part.text.splitlines())
    assert nats == pytest.approx(part.log_probability)


def test_training_and_validation_share_no_stories():
    training = set(tales(1_000_000, seed=0, split="train").text.splitlines())
    validation = tales(200_000, seed=0, split="val").text.splitlines()
    assert not training.intersection(validation)
    assert len(set(validation)) == len(validation)


def test_no_split_of_one_seed_is_a_split_of_another():
    texts = {tales(500, seed=s, split=p).text for s in range(20) for p in ("train", "val")}
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
        tales(**arguments)


def test_a_megabyte_takes_about_a_second():
    # In a fresh process: the type checks of the tests are no part of the speed. Asked for: 1 MB/s.
    measure = (
        "import time; from mlx_attn.text.stories.dataset import tales; start = time.process_time();"
        "tales(1_000_000); print(time.process_time() - start)"
    )
    seconds = subprocess.run(
        [sys.executable, "-c", measure], capture_output=True, text=True, check=True
    ).stdout
    assert float(seconds) < 2
