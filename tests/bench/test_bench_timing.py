"""Things are timed in turns, and compared within a round."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_attn.bench import timing
from mlx_attn.bench.timing import Spread, Timing, in_turns, turns

NUMBERS = st.lists(st.floats(0.1, 10), min_size=1, max_size=20)


def test_a_round_goes_there_and_back():
    assert turns(["a", "b", "c"]) == ["a", "b", "c", "c", "b", "a"]


def test_everything_is_run_twice_before_it_is_timed_in_rounds(monkeypatch):
    monkeypatch.setattr(timing, "SHORTEST", 0.0)
    log: list[str] = []
    measured = in_turns({"a": lambda: log.append("a"), "b": lambda: log.append("b")}, 0.0, 3)
    assert "".join(log) == "aabb" + 3 * "abba"
    assert [len(t.seconds) for t in measured.values()] == [3, 3]


def test_quick_things_are_repeated_in_a_turn(monkeypatch):
    monkeypatch.setattr(timing, "SHORTEST", 1e-3)
    log: list[int] = []
    in_turns({"quick": lambda: log.append(1)}, 0.0, 1)
    assert len(log) > 4


@given(NUMBERS)
def test_a_spread_is_in_order(numbers):
    spread = Spread.of(numbers)
    assert min(numbers) <= spread.low <= spread.median <= spread.high <= max(numbers)


@given(NUMBERS)
def test_a_speed_s_spread_is_in_order_too(numbers):
    speed = Spread.of(numbers).inverse(100.0)
    assert speed.low <= speed.median <= speed.high


def test_ratios_are_formed_within_a_round():
    slow, fast = Timing((2.0, 20.0, 200.0)), Timing((1.0, 10.0, 100.0))
    assert slow.over(fast) == Spread(2.0, 2.0, 2.0)


def test_only_timings_of_the_same_rounds_are_compared():
    with pytest.raises(ValueError, match="shorter"):
        Timing((1.0, 2.0)).over(Timing((1.0,)))
