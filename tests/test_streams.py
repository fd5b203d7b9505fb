"""Work divided among streams gives the same numbers; training/test_step.py has the shares."""

import mlx.core as mx
import numpy as np

from mlx_attn.machine.streams import parallel_map


def test_results_come_in_the_order_of_the_parts():
    parts = list(mx.arange(12.0).reshape(3, 4))
    results = parallel_map(lambda part: {"twice": 2 * part, "sum": part.sum()}, parts)
    assert [float(result["sum"]) for result in results] == [6, 22, 38]
    assert np.array(results[2]["twice"]).tolist() == [16, 18, 20, 22]


def test_parts_that_depend_on_each_other_s_streams_can_follow():
    halves = parallel_map(lambda part: part @ part.T, mx.ones((4, 3)).split(2))
    again = parallel_map(lambda part: part + halves[1], halves)
    assert np.array(again[0]).tolist() == [[6, 6], [6, 6]]
