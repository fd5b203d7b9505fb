"""Layers for tests of attention: with random weights, with a choice of one's own, decoded."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlx_attn.arrays import named_arrays
from mlx_attn.attention.attention import Attention
from mlx_attn.attention.cache import KVCache
from mlx_attn.attention.catalog import choice
from mlx_attn.attention.config import AttentionConfig

SIZES: dict[str, Any] = {"d_in": 16, "d_out": 16, "context_length": 12, "n_heads": 4}
Arrays = dict[str, np.ndarray]


def layer_of(**settings: Any) -> Attention:
    """A layer in evaluation mode whose trained weights are random."""
    module = Attention(AttentionConfig(**{**SIZES, **settings}))
    drawn = np.random.default_rng(5)
    arrays = named_arrays(module.trainable_parameters()).items()
    weights = [(n, mx.array(0.5 * drawn.normal(size=a.shape), mx.float32)) for n, a in arrays]
    module.load_weights(weights, strict=False)
    module.eval()
    return module


def numbers(module: Attention) -> Arrays:
    """The weights by name in float64."""
    return {name: np.array(a).astype(np.float64) for name, a in named_arrays(module).items()}


def text(batch: int = 2, T: int = 12) -> mx.array:
    return mx.array(np.random.default_rng(0).normal(size=(batch, T, 16)), mx.float32)


def decoded(
    module: Attention, x: mx.array, pieces: list[int], cache: KVCache | None = None
) -> mx.array:
    """Read a text in pieces with a cache, and return the layer's outputs."""
    config, start, read = module.config, 0, []
    cache = cache or KVCache(x.shape[1], config.cache_window, config.caches_tokens)
    for length in pieces:
        read.append(module(x[:, start : start + length], cache))
        start += length
    return mx.concatenate(read, axis=1)


def check_gradients(
    module: Attention,
    run: Callable[[Attention], mx.array],
    reference: Callable[[Arrays], np.ndarray],
) -> None:
    """Compare the gradient of every weight with central differences of a reference in float64."""
    drawn = np.random.default_rng(1)
    R = drawn.normal(size=run(module).shape)

    def loss(parameters: dict[str, Any]) -> mx.array:
        module.update(parameters)
        return (run(module) * mx.array(R, mx.float32)).sum()

    w = numbers(module)
    gradients = named_arrays(mx.grad(loss)(module.trainable_parameters()))
    for name, gradient in gradients.items():
        direction = drawn.normal(size=gradient.shape)
        direction /= np.linalg.norm(direction)
        ends = ({**w, name: w[name] + step * direction} for step in (1e-5, -1e-5))
        more, less = ((reference(end) * R).sum() for end in ends)
        slope = (np.array(gradient) * direction).sum()
        size = max(1.0, float(mx.abs(gradient).max()))
        assert abs(slope - (more - less) / 2e-5) < 1e-5 * size, name


@pytest.fixture
def own(own_rows) -> Callable[..., Attention]:
    """Makes a layer with a choice of one's own."""

    def make(
        map_name: str,
        apply: Callable[..., Any],
        settings: Any = (),
        name: str = "own",
        **facts: Any,
    ) -> Attention:
        choice(map_name, name, "a formula", **facts)(apply)
        layer = Attention(AttentionConfig(**{**SIZES, map_name: name, **dict(settings)}))
        layer.eval()
        return layer

    return make
