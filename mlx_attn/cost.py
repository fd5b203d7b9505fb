"""What attention and a model cost: trained numbers, multiply-adds, and what decoding caches.

Everything is counted from shapes; nothing of a model's size is allocated.
"""

from collections import Counter
from dataclasses import dataclass

import mlx.core as mx

from mlx_attn.arrays import count_parameters, named_arrays
from mlx_attn.attention.attention import Attention
from mlx_attn.attention.cache import make_cache
from mlx_attn.attention.config import AttentionConfig
from mlx_attn.attention.layer import Carry
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT


@dataclass(frozen=True, slots=True)
class AttentionCost:
    """The cost of one layer."""

    parameters: int  # trained numbers
    multiply_adds: int  # per token, at full context, in the form used for training
    cache_floats: int  # numbers that decoding caches of each token
    state_floats: int  # numbers that decoding caches of a whole text


def attention_cost(config: AttentionConfig) -> AttentionCost:
    """Count one layer of this configuration, from the shapes of its maps."""
    layer = Attention(config)
    sizes = {name: array.size for name, array in named_arrays(layer.trainable_parameters()).items()}
    # Matrices multiply a token; biases and gains are only counted.
    matrices = sum(n for name, n in sizes.items() if name.endswith("weight"))
    _, key_width = layer.maps.score.shape(config)
    _, value_width = layer.maps.value.shape(config)
    seen = min(config.cache_window or config.context_length, config.context_length)
    more = sum(choice.multiply_adds(config) for choice in layer.maps.all)
    more += sum(n for name, n in sizes.items() if name.startswith("conv_"))
    # A token shows what is cached. Its arrays stay lazy, so a model of any size is counted.
    cache = make_cache(1, caches_tokens=config.caches_tokens)
    if config.cross_layer != "reader":
        layer(mx.zeros((1, 1, config.d_in)), cache, Carry())
    cached = sum(array.size for array in cache.buffers)
    of_tokens = cached if config.caches_tokens else 0
    return AttentionCost(
        parameters=sum(sizes.values()),
        multiply_adds=matrices + config.n_maps * seen * (key_width + value_width) + more,
        cache_floats=of_tokens,
        state_floats=sum(rows.size for rows in cache.rows) + cached - of_tokens,
    )


@dataclass(frozen=True, slots=True)
class ModelCost:
    """The cost of a model; see `AttentionCost`, of which it has the sums over all layers.

    Attention is counted as computed (not the causal half only); embeddings are looked up and cost
    no multiply-adds.
    """

    parameters: int  # embeddings included
    attention_parameters: int
    multiply_adds: int
    cache_floats: int
    state_floats: int = 0


def model_cost(config: GPTConfig) -> ModelCost:
    """Count a model of this configuration; nothing of its size is allocated."""
    attention = [(n, attention_cost(layer)) for layer, n in _layers(config).items()]
    # Multiply-adds per token: [C] x [C, hidden] and [hidden] x [hidden, C].
    feed_forward = 2 * config.emb_dim * config.hidden_dim
    head = config.emb_dim * config.vocab_size  # [C] x [C, V]
    return ModelCost(
        parameters=count_parameters(GPT(config, seed=None)),
        attention_parameters=sum(n * cost.parameters for n, cost in attention),
        multiply_adds=sum(n * (cost.multiply_adds + feed_forward) for n, cost in attention) + head,
        cache_floats=sum(n * cost.cache_floats for n, cost in attention),
        state_floats=sum(n * cost.state_floats for n, cost in attention),
    )


def cache_bytes(config: GPTConfig, tokens: int) -> int:
    """Return the bytes in all caches after this many tokens, in float32.

    A window bounds its layer's cache.
    """
    floats = 0
    for layer, n in _layers(config).items():
        cost = attention_cost(layer)
        held = min(layer.cache_window or tokens, tokens)
        floats += n * (cost.cache_floats * held + cost.state_floats)
    return 4 * floats


def _layers(config: GPTConfig) -> Counter[AttentionConfig]:
    """Return how many layers of each form a model has: equal ones are measured once."""
    return Counter(config.attention(layer) for layer in range(config.n_layers))
