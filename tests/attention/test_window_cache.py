"""Sliding windows: a ring holds what later queries see, in the order in which they read it."""

from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_attn.attention.cache import NEVER, make_cache
from mlx_attn.attention.config import find_variant
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT
from tests.attention.conftest import decoded, layer_of

C = 16


def numbered(start: int, end: int) -> mx.array:
    """Tokens start..end - 1, each as one number."""
    return mx.arange(float(start), end).reshape(1, 1, -1, 1)


sizes = st.lists(st.integers(1, 7), min_size=1, max_size=8)


@given(window=st.integers(0, 9), sizes=sizes, in_order=st.booleans())
def test_a_cache_returns_what_the_new_queries_see_and_where_it_stands(window, sizes, in_order):
    cache, end = make_cache(sum(sizes) + 1, window), 0
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


@pytest.mark.parametrize("position", ["none", "alibi", "rope"])
@pytest.mark.parametrize(
    "choices",
    [{}, {"score": "merged"}, {"value": "from_key"}, {"logits": "forget+temperature"}],
    ids=str,
)
def test_a_window_decodes_as_it_reads(position, choices):
    x = mx.random.normal((2, 30, C))
    for window in (1, 5):
        module = layer_of(window=window, position=position, **choices)
        read = decoded(module, x, [1, 2, 10, *[1] * 14, 3])
        assert mx.allclose(read, module(x), atol=1e-5), window


def test_a_token_outside_the_window_changes_nothing():
    module, x = layer_of(window=3), mx.random.normal((1, 9, C))
    other = mx.concatenate([mx.zeros((1, 1, C)), x[:, 1:]], axis=1)
    assert mx.allclose(module(x)[:, 3:], module(other)[:, 3:], atol=1e-6)
    assert not mx.allclose(module(x)[:, 2], module(other)[:, 2], atol=1e-6)


# Whole models: which layers have a window, and what they hold.


def model(variant: str, **sizes: Any) -> GPT:
    settings = {"vocab_size": 20, "emb_dim": C, "n_layers": 5, "start": "zero", "position": "none"}
    module = GPT(GPTConfig(**{**settings, **find_variant(variant).settings, **sizes}))
    module.eval()
    return module


def test_every_other_layer_of_local_global_sees_all():
    windows = [block.att.config.window for block in model("local-global").trf_blocks]
    assert windows == [32, 0, 32, 0, 32]


def test_a_model_decodes_as_it_reads_beyond_the_window():
    module, tokens = model("local-global", window=4), mx.random.randint(0, 20, (1, 40))
    caches, parts = module.new_caches(), []
    for a, b in ((0, 7), *((t, t + 1) for t in range(7, 40))):
        parts.append(module(tokens[:, a:b], caches))
    assert mx.allclose(mx.concatenate(parts, axis=1), module(tokens), atol=1e-5)
