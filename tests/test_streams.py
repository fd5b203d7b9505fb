"""Work divided among streams gives the same numbers, and is left whole where it must be."""

import mlx.core as mx
import numpy as np
import pytest

from mlx_attn.machine import streams
from mlx_attn.machine.streams import num_shards, parallel_map


@pytest.fixture
def three_cores(monkeypatch):
    monkeypatch.setattr(streams, "cores", lambda: 3)


@pytest.mark.parametrize(("pieces", "shares"), [(1, 1), (2, 2), (4, 2), (6, 3), (7, 1), (9, 3)])
def test_shares_are_equal_and_at_most_one_per_core(three_cores, pieces, shares):
    assert num_shards(pieces) == shares


def test_results_come_in_the_order_of_the_parts():
    parts = list(mx.arange(12.0).reshape(3, 4))
    results = parallel_map(lambda part: {"twice": 2 * part, "sum": part.sum()}, parts)
    assert [float(result["sum"]) for result in results] == [6, 22, 38]
    assert np.array(results[2]["twice"]).tolist() == [16, 18, 20, 22]


def test_parts_that_depend_on_each_other_s_streams_can_follow():
    halves = parallel_map(lambda part: part @ part.T, mx.ones((4, 3)).split(2))
    again = parallel_map(lambda part: part + halves[1], halves)
    assert np.array(again[0]).tolist() == [[6, 6], [6, 6]]
