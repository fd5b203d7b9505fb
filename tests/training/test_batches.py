import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_attn.errors import ConfigError
from mlx_attn.text.corpus import Split
from mlx_attn.training.batches import BatchSampler, EpochWindows, RandomWindows, document_places

ORDERS = [RandomWindows(1000, 16, 4), EpochWindows(1000, 16, 4)]


def starts(order: BatchSampler, seed: int, step: int) -> list[int]:
    return np.array(order.starts(seed, step)).tolist()


@pytest.mark.parametrize("order", ORDERS)
def test_a_batch_is_a_pure_function_of_seed_and_step(order):
    """It neither reads nor moves the random state of the model."""
    mx.random.seed(99)
    untouched = mx.random.uniform().item()
    cases = [(seed, step) for seed in (0, 1, 2, 2**32 - 1) for step in (0, 1, 15, 30)]
    batches = [starts(order, *case) for case in cases]
    assert {len(batch) for batch in batches} == {order.batch_size}
    assert len({tuple(batch) for batch in batches}) == len(batches)
    mx.random.seed(99)
    assert [starts(order, *case) for case in cases] == batches
    assert mx.random.uniform().item() == untouched


@pytest.mark.parametrize(
    ("order", "places"),
    [
        (RandomWindows(12, 8, 4), {0, 1, 2, 3}),
        (RandomWindows(100, 10, 4, np.array([0, 30, 89, 90])), {0, 30, 89}),
    ],
    ids=["from the first to the last", "only those given that leave room"],
)
def test_random_windows_reach_all_their_places(order, places):
    assert {start for step in range(200) for start in starts(order, 0, step)} == places


def test_windows_start_anywhere_in_a_billion_tokens():
    odd = sum(start % 2 for start in starts(RandomWindows(2**30, 8, 64), 0, 0))
    assert 16 < odd < 48
    assert len({*starts(EpochWindows(2**30, 2**12, 2**17), 0, 0)}) == 2**17


def test_windows_start_with_stories_that_fit_into_them():
    stories = Split(np.zeros(30, np.uint16), 30, document_starts=np.array([0, 8, 19]))
    assert document_places(stories, 11) is stories.document_starts
    assert document_places(stories, 10) is None
    assert document_places(Split(np.zeros(30, np.uint16), 30), 10) is None


@settings(max_examples=50)
@given(st.integers(2, 300), st.integers(1, 12), st.integers(1, 9), st.integers(0, 3))
def test_an_epoch_sees_every_window_at_most_once_and_drops_less_than_a_batch(
    n_tokens, T, batch_size, epoch
):
    if n_tokens <= T:
        return
    order = EpochWindows(n_tokens, T, batch_size)
    first = epoch * order.steps_per_epoch
    seen = [s for step in range(order.steps_per_epoch) for s in starts(order, 0, first + step)]
    assert len(set(seen)) == len(seen)
    assert set(seen) <= set(range(0, n_tokens - T, T))
    assert order.n_windows - len(seen) < order.batch_size


def test_the_sizes_of_an_epoch():
    # 4,629 GPT-2 tokens, context 256, batches of 2: chapter 5 trains 9 batches an epoch.
    assert EpochWindows(4629, 256, 2).steps_per_epoch == 9
    assert RandomWindows(4629, 256, 2).steps_per_epoch == 4629 / 512  # as many tokens
    assert EpochWindows(30, 8, 12).batch_size == 3  # fewer windows than a batch


def test_a_text_that_is_too_short_is_refused_with_the_numbers():
    with pytest.raises(ConfigError, match="16 tokens to train on, too few for context_length=16"):
        EpochWindows(16, 16, 1)
