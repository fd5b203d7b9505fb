"""Sliding windows: a ring holds what later queries see, in the order in which they read it."""

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_attn.attention.attention import Attention
from mlx_attn.attention.cache import NEVER, make_cache
from mlx_attn.attention.config import AttentionConfig, find_variant
from mlx_attn.errors import ConfigError
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT, cache_bytes

C = 16


def layer(**choices: Any) -> Attention:
    config = AttentionConfig(d_in=C, d_out=C, context_length=64, n_heads=4, **choices)
    module = Attention(config)
    module.eval()
    return module


def numbered(start: int, end: int) -> mx.array:
    """Tokens start..end - 1, each as one number."""
    return mx.arange(float(start), end).reshape(1, 1, -1, 1)


sizes = st.lists(st.integers(1, 7), min_size=1, max_size=8)


def extended(window: int, sizes: list[int], in_order: bool) -> Iterator[tuple[int, int, Any, Any]]:
    """Each extension: where it starts and ends, and the tokens returned beside their positions."""
    cache, end = make_cache(sum(sizes) + 1, window), 0
    for size in sizes:
        start, end = end, end + size
        (seen,), places = cache.extend((numbered(start, end),), in_order)
        assert places.query == start
        yield start, end, seen.flatten().tolist(), places


@given(window=st.integers(0, 9), sizes=sizes, in_order=st.booleans())
def test_a_cache_returns_what_the_new_queries_see_and_where_it_stands(window, sizes, in_order):
    for start, end, seen, places in extended(window, sizes, in_order):
        stands = zip(places.keys.tolist(), seen, strict=True)
        read = [(at, token) for at, token in stands if at < end]
        assert all(at == token for at, token in read)
        first = max(0, start - window + 1) if window else 0
        assert {token for _, token in read} >= set(range(first, end))


@given(window=st.integers(0, 9), sizes=sizes)
def test_in_order_the_newest_token_is_last(window, sizes):
    for _, end, seen, places in extended(window, sizes, in_order=True):
        expected = [t if t >= 0 else NEVER for t in range(end - len(seen), end)]
        assert places.keys.tolist() == expected
        assert places.first == end - len(seen)
        assert seen[-1] == end - 1


@given(window=st.integers(1, 9), sizes=sizes)
def test_a_ring_holds_the_last_tokens_each_in_its_slot(window, sizes):
    cache, end = make_cache(sum(sizes) + 1, window), 0
    for size in sizes:
        cache.extend((numbered(end, end := end + size),))
    held: Any = cache.buffers[0].flatten().tolist()
    assert len(held) == min(window, sum(sizes) + 1)
    assert all(held[t % len(held)] == t for t in range(max(0, end - len(held)), end))


@pytest.mark.parametrize("position", ["none", "alibi", "rope"])
@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"score": "merged"},
        {"value": "from_key"},
        {"value": "key", "qk_norm": True},
        {"score": "latent", "value": "latent"},
        {"logits": "forget+temperature"},
        {"logits": "self_mask"},
        {"mixing": "sink"},
    ],
    ids=str,
)
@pytest.mark.parametrize("window", [1, 5])
def test_a_window_decodes_as_it_reads(window, position, choices):
    try:
        module = layer(window=window, position=position, **choices)
    except ConfigError:
        pytest.skip("this combination does not exist")
    x, cache, parts = mx.random.normal((2, 30, C)), make_cache(30, window), []
    for a, b in ((0, 1), (1, 3), (3, 13), *((t, t + 1) for t in range(13, 27)), (27, 30)):
        parts.append(module(x[:, a:b], cache))
    assert mx.allclose(mx.concatenate(parts, axis=1), module(x), atol=1e-5)


def test_a_token_outside_the_window_changes_nothing():
    module, x = layer(window=3), mx.random.normal((1, 9, C))
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
    sixth = model("local-global", n_layers=6, global_every=6).trf_blocks
    assert [block.att.config.window for block in sixth] == [32, 32, 32, 32, 32, 0]


@pytest.mark.parametrize("variant", ["sliding-window", "local-global"])
def test_a_model_decodes_as_it_reads_beyond_the_window(variant):
    module, tokens = model(variant, window=4), mx.random.randint(0, 20, (1, 40))
    caches, parts = module.new_caches(), []
    for a, b in ((0, 7), *((t, t + 1) for t in range(7, 40))):
        parts.append(module(tokens[:, a:b], caches))
    assert mx.allclose(mx.concatenate(parts, axis=1), module(tokens), atol=1e-5)


def test_the_bytes_of_the_caches_are_those_that_are_counted():
    module, caches = model("local-global"), model("local-global").new_caches(256)
    module(mx.zeros((1, 3), mx.int32), caches)
    held = sum(buffer.nbytes for cache in caches for buffer in cache.buffers)
    assert held == cache_bytes(module.config, 256, 4)
    assert held == (3 * 32 + 2 * 256) * 2 * C * 4
