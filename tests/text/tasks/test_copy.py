import math

import numpy as np
import pytest

from mlx_attn.text.tasks import draw


@pytest.mark.parametrize(
    ("vocabulary", "length", "floor"),
    [(32, 64, 1.7054), (64, 128, 2.0631)],
)
def test_the_floor_is_the_cost_of_half_the_string(vocabulary, length, floor):
    documents = draw("copy", 3, vocabulary=vocabulary, length=length)
    assert documents.floor == pytest.approx(floor, abs=5e-5)


def test_the_second_half_is_the_first_again():
    documents = draw("copy", 50)
    first, second = np.split(documents.places, 2, axis=1)
    assert np.array_equal(first, second)
    assert documents.answers[:, 32:].all()
    assert not documents.answers[:, :32].any()


def test_all_symbols_but_the_first_are_scored():
    documents = draw("copy", 5)
    assert not documents.scored[:, 0].any()
    assert documents.scored[:, 1:].all()
    assert documents.nats[:, 1:32] == pytest.approx(math.log(32))
