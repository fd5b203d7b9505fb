"""Sliding windows: a ring holds what later queries see, in the order in which they read it."""

from typing import Any

import mlx.core as mx
from hypothesis import given
from hypothesis import strategies as st

from mlx_attn.attention.cache import NEVER, KVCache


def numbered(start: int, end: int) -> mx.array:
    """Tokens start..end - 1, each as one number."""
    return mx.arange(float(start), end).reshape(1, 1, -1, 1)


sizes = st.lists(st.integers(1, 7), min_size=1, max_size=8)


@given(window=st.integers(0, 9), sizes=sizes, in_order=st.booleans())
def test_a_cache_returns_what_the_new_queries_see_and_where_it_stands(window, sizes, in_order):
    cache, end = KVCache(sum(sizes) + 1, window), 0
    for size in sizes:
        start, end = end, end + size
        (tokens,), places = cache.extend((numbered(start, end),), in_order)
        seen: Any = tokens.flatten().tolist()
        keys: Any = places.keys.tolist()
        stands = zip(keys, seen, strict=True)
        read = [(at, token) for at, token in stands if at < end]
        assert places.query == start
        assert all(at == token for at, token in read)
        first = max(0, start - window + 1) if window else 0
        assert {token for _, token in read} >= set(range(first, end))
        if in_order:
            expected = [t if t >= 0 else NEVER for t in range(end - len(seen), end)]
            assert keys == expected
            assert (places.first, seen[-1]) == (end - len(seen), end - 1)
